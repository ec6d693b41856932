"""EditedModel: a loaded model that carries one assignment of its settings, and then another."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.conversion.apply import apply
from evalguard.conversion.as_loaded import AsLoaded
from evalguard.conversion.building import unknown_in_build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.readback import read_arguments, read_edits
from evalguard.conversion.taken_weights import ReadTensors, take_weights
from evalguard.errors import EvaluationError, SettingError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.assigned import Assigned
from evalguard.pipeline.token_budget import give_budget
from evalguard.pipeline.wanted_model import WantedModel, proofs_of
from evalguard.pipeline.weight_digests import VARIABLES, unknown_dependencies
from evalguard.scorer import ScoringPolicy
from evalguard.settings import Value, Variant

if TYPE_CHECKING:
    import torch

_EDITS = ("weights", "generation", "attr", "dtype", "call")  # targets inside the loaded model
_TINY_PARAMETERS = 20_000_000


@dataclass(slots=True, kw_only=True)
class EditedModel:
    """An lm-eval model, and what it was loaded from.

    Attributes:
        as_loaded: what it was before its settings edited it; None: nobody noted that.
    """

    lm: Any
    wanted: WantedModel
    policy: ScoringPolicy
    cache_dir: Path
    known: KnownDigests | None
    as_loaded: AsLoaded | None = None

    def note(self) -> None:
        """Note what was loaded, so that settings can be assigned anew without loading.

        Not where a hook is called, which may change what no note covers.
        """
        model = _torch_model(self.lm)
        if model is None or self.wanted.variant.model not in HF_TYPES or self.wanted.plan.calls:
            return
        self.as_loaded = AsLoaded(self.lm, model)

    def carry(self, wanted: WantedModel) -> Assigned:
        """Edit the model, as it was loaded, so that it carries a variant's settings.

        Raises:
            SettingError: a setting could not be applied or did not take.
            EvaluationError: files changed meanwhile.
        """
        variant, plan = wanted.variant, wanted.plan
        effective = read_arguments(self.lm, plan, wanted.model_args)
        model = _model_to_edit(self.lm, wanted)
        code: dict[str, Any] = {
            "code_folder": variant.code_folder,
            "allow_code": variant.allow_code,
        }
        if model is not None:
            take_weights(model, plan.weights, reader(variant))
            apply(model, plan, **code)
        effective |= read_edits(model, plan, **code)
        if self.as_loaded is not None:
            self.as_loaded.set_aside(_fit_here)
        threads = _threads(self.policy, self.lm)
        lower = give_budget(self.lm, self.policy, threads=threads, cache_dir=self.cache_dir)
        return Assigned(
            effective={setting.name: effective[setting.name] for setting in variant.settings},
            provenance=self._provenance(wanted, effective),
            threads=threads,
            caveats=(
                *_not_kept(unknown_dependencies(variant, plan, wanted.model_args)),
                *_built_anew(unknown_in_build(variant, plan)),
            ),
            on_smaller_budget=lower,
        )

    def reassigned(self, variant: Variant) -> Assigned | None:
        """Take the settings back that the model carries, and let it carry a variant's.

        Returns:
            None where only loading gives what loading would: another file, argument, environment
            or code, or something in the model that cannot be taken back.

        Raises:
            EvaluationError: as ``carry`` does.
        """
        with contextlib.redirect_stdout(sys.stderr):
            wanted = WantedModel.of(variant, cache_dir=self.cache_dir, known=self.known)
            if self.as_loaded is None or wanted.plan.calls or not wanted.loads_as(self.wanted):
                return None
            return self.carry(wanted) if self.as_loaded.restore() else None

    def _provenance(
        self, wanted: WantedModel, effective: Mapping[str, Value]
    ) -> dict[str, Value] | None:
        """What weights and code of the model are; None where that cannot be proven.

        Raises:
            EvaluationError: they were others before.
        """
        found = proofs_of(wanted.variant, wanted.plan, wanted.model_args, self.known)
        if found is None:
            return None
        # What loading downloads was not there before; variables that it sets were others.
        before = found if wanted.proofs is None else wanted.proofs
        if _without_variables(before) != _without_variables(found):
            raise EvaluationError(
                f"files that '{wanted.variant.name}' is loaded from changed while it was being "
                "loaded",
                hint="run the same command again when they are finished",
            )
        settings: dict[str, Value] = {
            name: [str(target), value, effective[name]]
            for name, (target, value) in wanted.plan.targets.items()
        }
        return {**before, "settings": settings}


def _without_variables(proofs: Mapping[str, Value]) -> dict[str, Value]:
    code = proofs["code"]
    assert isinstance(code, dict)
    return {**proofs, "code": {name: one for name, one in code.items() if name != VARIABLES}}


def _built_anew(unknown: tuple[str, ...]) -> tuple[str, ...]:
    return (f"every run builds it anew: {unknown[0]}{_more(unknown)}",) if unknown else ()


def _more(unknown: tuple[str, ...]) -> str:
    return f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""


def _not_kept(unknown: tuple[str, ...]) -> tuple[str, ...]:
    if not unknown:
        return ()
    return (
        f"its scores are not kept for other runs: {unknown[0]}{_more(unknown)}, so what they "
        "depend on cannot be known",
    )


def reader(variant: Variant) -> ReadTensors:
    """Return what reads tensors of other checkpoints for a variant's ``weights:`` settings."""
    from evalguard.models.checkpoint_tensors import checkpoint_tensors

    return functools.partial(checkpoint_tensors, allow_pickle=variant.allow_pickle)


def _threads(policy: ScoringPolicy, lm: Any) -> int:
    """CPU threads of a model: as asked, else one for a tiny model, else torch's own number (0).

    A tiny model's matrices are too small to share: a second thread costs more than it brings, and
    beside other work many times as much.
    """
    model = _torch_model(lm)
    parameters = 0 if model is None else sum(p.numel() for p in model.parameters())
    return policy.threads or int(0 < parameters < _TINY_PARAMETERS)


def _fit_here(size: int) -> bool:
    from evalguard.models.memory import fits

    return fits(size, "cpu")


def _torch_model(lm: Any) -> torch.nn.Module | None:
    from evalguard.models.identity import torch_model

    return torch_model(lm)


def _model_to_edit(lm: Any, wanted: WantedModel) -> torch.nn.Module | None:
    if not wanted.plan.edits_model:
        return None
    model = _torch_model(lm)
    if model is None:
        names = [n for n, (t, _) in wanted.plan.targets.items() if t.kind in _EDITS]
        raise SettingError(
            f"setting '{names[0]}' edits a torch model, and model type "
            f"'{wanted.variant.model}' has none in this process",
            hint="weights:, generation., attr:, dtype: and call: settings work with model: hf",
        )
    return model
