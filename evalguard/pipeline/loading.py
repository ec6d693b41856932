"""Load a variant in this process: plan, build, load, edit, read back.

The adapters do not know each other; this is where they meet.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.conversion.apply import apply
from evalguard.conversion.building import build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.planning import ConversionPlan, plan, with_build
from evalguard.conversion.readback import check_environment, read_arguments, read_edits
from evalguard.conversion.taken_weights import ReadTensors, take_weights
from evalguard.errors import EvaluationError, SettingError
from evalguard.models.loading import load_lm
from evalguard.pipeline.token_budget import give_budget
from evalguard.pipeline.weight_digests import code_digests, weights_of
from evalguard.scorer import Scorer, ScoringPolicy
from evalguard.settings import Value, Variant

if TYPE_CHECKING:
    import torch

_EDITS = ("weights", "generation", "attr", "dtype", "call")  # targets inside the loaded model
_TINY_PARAMETERS = 20_000_000


def open_scorer(
    variant: Variant,
    policy: ScoringPolicy,
    *,
    cache_dir: Path,
    known: KnownDigests | None = None,
) -> Scorer:
    """Load a variant with the settings of its assignment, and prove that every one took.

    Args:
        known: digests of big files from earlier runs; None: every file is read.

    Raises:
        UsageError: a name or argument that does not exist, or code that is not allowed.
        SettingError: a setting that could not be applied or did not take; an ``env`` setting
            that this process was not started with.
        BuildError: the build recipe failed.
        EvaluationError: the model cannot be loaded.
    """
    # recipes, hooks and libraries may print; stdout belongs to results
    with contextlib.redirect_stdout(sys.stderr):
        return _open(variant, policy, cache_dir, known)


def _open(
    variant: Variant, policy: ScoringPolicy, cache_dir: Path, known: KnownDigests | None
) -> Scorer:
    wanted = plan(variant)
    check_environment(wanted.env)
    model_args: Mapping[str, Value] = wanted.model_args
    if variant.build is not None:
        model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
    return _loaded(variant, policy, wanted, model_args, cache_dir=cache_dir, known=known)


def _loaded(
    variant: Variant,
    policy: ScoringPolicy,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    *,
    cache_dir: Path,
    known: KnownDigests | None,
) -> Scorer:
    from evalguard.models.lm_scorer import LMScorer

    before = _proofs(variant, wanted, model_args, known)
    lm: Any = load_lm(
        variant.model,
        model_args,
        wanted.config_overrides,
        policy,
        trust_remote_code=variant.trust_remote_code,
        allow_pickle=variant.allow_pickle,
    )
    effective = read_arguments(lm, wanted, model_args)
    model = _model_to_edit(lm, variant, wanted)
    code = {"code_folder": variant.code_folder, "allow_code": variant.allow_code}
    if model is not None:
        take_weights(model, wanted.weights, reader(variant))
        apply(model, wanted, **code)  # type: ignore[arg-type]
    effective |= read_edits(model, wanted, **code)  # type: ignore[arg-type]
    threads = _threads(policy, _parameters(lm))
    lower = give_budget(lm, policy, threads=threads, cache_dir=cache_dir)
    return LMScorer(
        lm,
        policy,
        model_type=variant.model,
        model_args=model_args,
        effective={setting.name: effective[setting.name] for setting in variant.settings},
        provenance=_provenance(variant, wanted, model_args, effective, before=before, known=known),
        threads=threads,
        on_smaller_budget=lower,
    )


def reader(variant: Variant) -> ReadTensors:
    """Return what reads tensors of other checkpoints for a variant's ``weights:`` settings."""
    from evalguard.models.checkpoint_tensors import checkpoint_tensors

    return functools.partial(checkpoint_tensors, allow_pickle=variant.allow_pickle)


def _threads(policy: ScoringPolicy, parameters: int) -> int:
    """CPU threads of a model: as asked, else one for a tiny model, else torch's own number (0).

    A tiny model's matrices are too small to share: a second thread costs more than it brings, and
    beside other work many times as much.
    """
    tiny = 0 < parameters < _TINY_PARAMETERS
    return policy.threads or int(tiny)


def _parameters(lm: Any) -> int:
    """Number of parameters of a torch model in this process, else 0."""
    from evalguard.models.identity import torch_model

    model = torch_model(lm)
    return 0 if model is None else sum(p.numel() for p in model.parameters())


def _model_to_edit(lm: Any, variant: Variant, wanted: ConversionPlan) -> torch.nn.Module | None:
    from evalguard.models.identity import torch_model

    if not wanted.edits_model:
        return None
    model: torch.nn.Module | None = torch_model(lm)
    if model is None:
        names = [n for n, (t, _) in wanted.targets.items() if t.kind in _EDITS]
        raise SettingError(
            f"setting '{names[0]}' edits a torch model, and model type "
            f"'{variant.model}' has none in this process",
            hint="weights:, generation., attr:, dtype: and call: settings work with model: hf",
        )
    return model


def _provenance(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    effective: Mapping[str, Value],
    *,
    before: Mapping[str, Value] | None,
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """What the weights and the code of this model are; None where that cannot be proven.

    Raises:
        EvaluationError: they were others ``before`` the model was loaded.
    """
    found = _proofs(variant, wanted, model_args, known)
    if found is None:
        return None
    # What loading downloads was not there before.
    if before is not None and before != found:
        raise EvaluationError(
            f"files that '{variant.name}' is loaded from changed while it was being loaded",
            hint="run the same command again when they are finished",
        )
    settings: dict[str, Value] = {
        name: [str(target), value, effective[name]]
        for name, (target, value) in wanted.targets.items()
    }
    return {**found, "settings": settings}


def _proofs(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """Digests of the weights and of the code; None where the weights cannot be proven."""
    weights = weights_of(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None:
        return None
    return {"weights": weights, "code": dict(code_digests(variant, wanted))}
