"""EditedModel: a loaded model that carries one assignment of its settings, and then another."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.conversion.attributes import AsLoaded, apply
from evalguard.conversion.building import build, describe_build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.planning import ConversionPlan, plan_conversion, with_build
from evalguard.conversion.readback import check_environment, read_arguments, read_edits
from evalguard.conversion.taken_modules import take_modules
from evalguard.conversion.taken_weights import ReadTensors, take_weights
from evalguard.core.scorer import ReassignableScorer, ScoringPolicy
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.errors import EvaluationError, SettingError, UsageError
from evalguard.models.arguments import HF_TYPES, SERVED_TYPES
from evalguard.models.load_failures import AssignedModel
from evalguard.models.loading import load_lm
from evalguard.models.machine import use_threads
from evalguard.models.served.calls import is_served
from evalguard.run.loading.foreign_code import brings_code, runs_other_code
from evalguard.run.loading.loading_facts import (
    PATCH_PREFIX,
    digest_code,
    digest_weights,
)
from evalguard.run.loading.module_sources import HostModel, ModuleSources
from evalguard.store.fact_cache import BudgetStore

if TYPE_CHECKING:
    import torch


_EDIT_KINDS = (
    "weights",
    "module",
    "generation",
    "attr",
    "dtype",
    "call",
)  # targets inside the loaded model
_TINY_PARAMETERS = 20_000_000


@dataclass(slots=True, kw_only=True)
class EditedModel:
    """An lm-eval model, and what it was loaded from.

    Attributes:
        watched: whether what its own code reads is seen; else nothing of such a model is kept.
        as_loaded: what it was before its settings edited it; None: nobody noted that.
        sources: other models, whose modules its settings take.
    """

    lm: Any
    wanted: LoadPlan
    policy: ScoringPolicy
    cache_dir: Path
    known: KnownDigests | None
    watched: bool = False
    as_loaded: AsLoaded | None = None
    sources: ModuleSources = field(init=False)

    def __post_init__(self) -> None:
        """Load other models as this one is loaded."""
        self.sources = ModuleSources(load=self._load_source)

    def note(self) -> None:
        """Note what was loaded, so that settings can be assigned anew without loading.

        Not where a hook is called, which may change what no note covers.
        """
        model = _torch_model(self.lm)
        if model is None or self.wanted.variant.model not in HF_TYPES or self.wanted.plan.calls:
            return
        self.as_loaded = AsLoaded(self.lm, model)

    def carry(self, wanted: LoadPlan) -> AssignedModel:
        """Edit the model, as it was loaded, so that it carries a variant's settings.

        Raises:
            SettingError: a setting could not be applied or did not take.
            EvaluationError: files changed meanwhile.
        """
        variant, plan = wanted.variant, wanted.plan
        self._check_revision(variant)
        effective = read_arguments(self.lm, plan, wanted.model_args)
        model = _editable_model(self.lm, wanted)
        sources = self._module_sources(model, wanted)
        code: dict[str, Any] = {
            "code_folder": variant.code_folder,
            "allow_code": variant.allow_code,
        }
        if model is not None:
            take_weights(model, plan.weights, tensor_reader(variant))
            apply(model, plan, **code)
        effective |= read_edits(model, plan, **code)
        if model is not None and plan.modules:
            effective |= take_modules(model, plan.modules, sources)
        if self.as_loaded is not None:
            self.as_loaded.set_aside(_fits_in_memory)
        threads = _thread_count(self.policy, self.lm)
        lower = set_token_budget(self.lm, self.policy, threads=threads, cache_dir=self.cache_dir)
        return AssignedModel(
            effective={setting.name: effective[setting.name] for setting in variant.settings},
            provenance=self._provenance(wanted, effective),
            # a client's texts are encoded here, whatever the server is
            revision="" if self._open() else variant.revision,
            threads=threads,
            caveats=(
                *_not_kept_note(self._open()),
                *(describe_build(variant, plan, self.cache_dir) if variant.serve is None else ()),
            ),
            on_smaller_budget=lower,
        )

    def _module_sources(
        self, model: torch.nn.Module | None, wanted: LoadPlan
    ) -> Callable[[Variant], torch.nn.Module]:
        """What loads the models that modules are taken from, to fit into this one as it is now."""
        self.sources.renew(None if wanted.proofs is None else _taken(wanted.proofs["weights"]))
        taking = [edit.setting for edit in wanted.plan.modules if edit.source is not None]
        if not taking:
            return self._load_source
        into = HostModel.of(model, wanted.variant, taking[0])
        return functools.partial(self.sources.model, into=into)

    def _load_source(self, source: Variant) -> torch.nn.Module:
        """Load a model that modules are taken from, with its own settings.

        Its settings are read back as any other's. What reads files of it proves them by the digest
        of its checkpoint, which stands in this model's identity.
        """
        plan = plan_conversion(source)
        lm: Any = load_lm(
            source.model,
            plan.model_args,
            plan.config_overrides,
            self.policy,
            trust_remote_code=source.trust_remote_code,
            allow_pickle=source.allow_pickle,
        )
        read_arguments(lm, plan, plan.model_args)
        model: torch.nn.Module = lm.model
        take_weights(model, plan.weights, tensor_reader(source))
        apply(model, plan, code_folder="", allow_code=False)
        read_edits(model, plan, code_folder="", allow_code=False)
        return model

    def _check_revision(self, variant: Variant) -> None:
        if variant.revision and not is_served(self.lm):
            raise UsageError(
                f"'{variant.name}' has a `revision:`, which vouches for what a server has; model "
                f"type '{variant.model}' is none of lm-eval's clients of servers that take one",
                hint="a revision of the hub belongs into model_args: {revision: NAME}",
            )

    def reassigned(self, variant: Variant) -> AssignedModel | None:
        """Take the settings back that the model carries, and let it carry a variant's.

        Returns:
            None where only loading gives what loading would: another file, argument, environment
            or code, or something in the model that cannot be taken back.

        Raises:
            EvaluationError: as ``carry`` does.
        """
        with contextlib.redirect_stdout(sys.stderr):
            wanted = LoadPlan.of(variant, cache_dir=self.cache_dir, known=self.known)
            if self.as_loaded is None or wanted.plan.calls or not wanted.loads_as(self.wanted):
                return None
            return self.carry(wanted) if self.as_loaded.restore() else None

    def _open(self) -> str:
        """Why nothing of the model may be kept, as far as code is to blame; "" where it may."""
        if not brings_code(self.wanted.variant, self.wanted.plan):
            module = runs_other_code()
            return module and (
                f"{module}, code that another model, a hook or a task has brought into this "
                "process, may have changed what it computes with"
            )
        if not self.watched:
            return "it runs code of others in a process that nobody watches"
        if self.sources.were_loaded:
            return (
                "modules of another model are in one process with code that a model brings, which "
                "may change what they compute"
            )
        return ""

    def _provenance(
        self, wanted: LoadPlan, effective: Mapping[str, Value]
    ) -> dict[str, Value] | None:
        """What weights and code of the model are; None where that cannot be proven.

        Raises:
            EvaluationError: they were others before.
        """
        found = prove_files(wanted.variant, wanted.plan, wanted.model_args, self.known)
        if found is None or self._open():
            return None
        before = found if wanted.proofs is None else wanted.proofs  # loading downloads
        if _without_patches(before) != _without_patches(found):
            raise EvaluationError(
                f"files that '{wanted.variant.name}' is loaded from changed while it was being "
                "loaded",
                hint="run the same command again when they are finished",
            )
        settings = wanted.plan.settings_for_identity(effective)
        return {**before, "code": _with_patches(before, found), "settings": settings}


def _without_patches(proofs: Mapping[str, Value]) -> dict[str, Value]:
    kept = {n: d for n, d in _code(proofs).items() if not n.startswith(PATCH_PREFIX)}
    return {**proofs, "code": kept}


def _with_patches(before: Mapping[str, Value], found: Mapping[str, Value]) -> dict[str, Value]:
    """The code that loading began with, and all that stands in place of a library's by now."""
    patches = {n: d for n, d in _code(found).items() if n.startswith(PATCH_PREFIX)}
    return {**_code(before), **patches}


def _code(proofs: Mapping[str, Value]) -> dict[str, Value]:
    code = proofs["code"]
    assert isinstance(code, dict)
    return code


def _not_kept_note(reason: str) -> tuple[str, ...]:
    return (f"its scores are not kept for other runs: {reason}",) if reason else ()


def tensor_reader(variant: Variant) -> ReadTensors:
    """Return what reads tensors of other checkpoints for a variant's ``weights:`` settings."""
    from evalguard.models.checkpoint_tensors import read_checkpoint_tensors

    return functools.partial(read_checkpoint_tensors, allow_pickle=variant.allow_pickle)


def _thread_count(policy: ScoringPolicy, lm: Any) -> int:
    """CPU threads of a model: as asked, else one for a tiny model, else torch's own number (0).

    A tiny model's matrices are too small to share: a second thread costs more than it brings, and
    beside other work many times as much.
    """
    model = _torch_model(lm)
    parameters = 0 if model is None else sum(p.numel() for p in model.parameters())
    return policy.threads or int(0 < parameters < _TINY_PARAMETERS)


def _fits_in_memory(size: int) -> bool:
    from evalguard.models.machine import fits_in_memory

    return fits_in_memory(size, "cpu")


def _torch_model(lm: Any) -> torch.nn.Module | None:
    from evalguard.models.identity import torch_model

    return torch_model(lm)


def _editable_model(lm: Any, wanted: LoadPlan) -> torch.nn.Module | None:
    if not wanted.plan.edits_model:
        return None
    model = _torch_model(lm)
    if model is None:
        names = [n for n, (t, _) in wanted.plan.targets.items() if t.kind in _EDIT_KINDS]
        raise SettingError(
            f"setting '{names[0]}' edits a torch model, and model type "
            f"'{wanted.variant.model}' has none in this process",
            hint="weights:, module:, generation., attr:, dtype: and call: settings work with "
            "model: hf",
        )
    return model


# The token budget of a model that was loaded: asked for, remembered, or measured now.


def set_token_budget(
    lm: Any, policy: ScoringPolicy, *, threads: int, cache_dir: Path
) -> Callable[[int], None]:
    """Give a model that cuts batches by tokens its budget.

    Returns:
        A function that remembers a smaller one, for where memory runs out.
    """
    if not getattr(lm, "own_path", False) or lm.sequences is not None:
        return lambda _: None
    from evalguard.models.hf.moved_batch import describe_budget_conditions

    store = BudgetStore(cache_dir / "devices")
    with use_threads(threads):
        facts = describe_budget_conditions(lm)
        budget = policy.token_budget or store.find_or_measure(facts, lambda: measure_budget(lm))
    lm.token_budget = budget

    def lower(to: int) -> None:
        if (store.get(facts) or 0) > to:
            _store_budget(store, facts, to)

    return lower


def measure_budget(lm: Any) -> int:
    """Measure the budget of a loaded model on its device; of every CPU it is the same."""
    from evalguard.models.hf.moved_batch import CPU_BUDGET, measure_token_budget

    return CPU_BUDGET if lm.device.type == "cpu" else measure_token_budget(lm)


def _store_budget(store: BudgetStore, facts: dict[str, Any], budget: int) -> None:
    # A folder that cannot be written costs the next run a measurement; the score cache says so.
    with contextlib.suppress(OSError):
        store.put(facts, budget)


# LoadPlan: a variant as it has to be loaded, planned and built, with what proves its files.


_TAKEN_PREFIX = "weights:"  # digests of checkpoints that settings take weights from


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What loading a variant takes.

    Attributes:
        plan: its settings by target.
        model_args: of lm-eval, with the path of what was built in its place.
        proofs: digests of weights and code, as they are now; None where they cannot be proven.
    """

    variant: Variant
    plan: ConversionPlan
    model_args: Mapping[str, Value]
    proofs: Mapping[str, Value] | None

    @classmethod
    def of(
        cls, variant: Variant, *, cache_dir: Path, known: KnownDigests | None = None
    ) -> LoadPlan:
        """Plan a variant, build it if it is not built yet, and digest its files.

        Raises:
            SettingError: settings that cannot be planned.
            BuildError: the build recipe failed.
        """
        wanted = plan_conversion(variant)
        model_args: Mapping[str, Value] = wanted.model_args
        if variant.build is not None and variant.serve is None:  # else its server has it
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
        proofs = prove_files(variant, wanted, model_args, known)
        return cls(variant=variant, plan=wanted, model_args=model_args, proofs=proofs)

    def loads_as(self, other: LoadPlan) -> bool:
        """Whether both are the same model, from the same files, until settings edit it."""
        files = [
            None if one.proofs is None else _without_taken(one.proofs["weights"])
            for one in (self, other)
        ]
        return files[0] == files[1] and same_loading(self.variant, other.variant)


def same_loading(one: Variant, other: Variant) -> bool:
    """Whether two variants differ at most in settings that edit the loaded model.

    Raises:
        SettingError: settings that cannot be planned.
    """
    return digest_of(_loading_settings(one)) == digest_of(_loading_settings(other))


def _loading_settings(variant: Variant) -> dict[str, Value]:
    wanted = plan_conversion(variant)
    return {
        "model": variant.model,
        "model_args": dict(wanted.model_args),
        "config": dict(wanted.config_overrides),
        "env": dict(wanted.env),
        "build": None if variant.build is None else asdict(variant.build),
        "inputs": dict(wanted.build_inputs),
        "trust": [variant.trust_remote_code, variant.allow_pickle, variant.allow_code],
        "code_folder": variant.code_folder,
        **({} if variant.serve is None else {"serve": dict(variant.serve.proofs)}),
    }


def prove_files(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """Digests of the weights and of the libraries; None where the weights cannot be proven."""
    if variant.serve is not None:
        return dict(variant.serve.proofs) or None
    if variant.model in SERVED_TYPES:
        return None  # files that a client names are not what a server has
    weights = digest_weights(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None:
        return None
    return {"weights": weights, "code": dict(digest_code(variant, wanted, known))}


def _without_taken(weights: Value) -> dict[str, Value]:
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if not name.startswith(_TAKEN_PREFIX)}


def _taken(weights: Value) -> dict[str, Value]:
    """Digests of the other checkpoints that settings take weights and modules from."""
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if name.startswith(_TAKEN_PREFIX)}


# Load a variant in this process: plan, build, load, edit, read back.
#
# The adapters do not know each other; this is where they meet.


def load_scorer(
    variant: Variant,
    policy: ScoringPolicy,
    *,
    cache_dir: Path,
    known: KnownDigests | None = None,
    reusable: bool = False,
    watched: bool = False,
) -> ReassignableScorer:
    """Load a variant with the settings of its assignment, and prove that every one took.

    Args:
        known: digests of big files from earlier runs; None: every file is read.
        reusable: whether other values are to be assigned to its settings later: weights that
            settings replace are kept for that.
        watched: whether an observer sees what code of others reads in this process.

    Raises:
        UsageError: a name or argument that does not exist, or code that is not allowed.
        SettingError: a setting that could not be applied or did not take; an ``env`` setting
            that this process was not started with.
        BuildError: the build recipe failed.
        EvaluationError: the model cannot be loaded.
    """
    from evalguard.models.lm_scorer import LMScorer

    # recipes, hooks and libraries may print; stdout belongs to results
    with contextlib.redirect_stdout(sys.stderr):
        check_environment(plan_conversion(variant).env)
        wanted = LoadPlan.of(variant, cache_dir=cache_dir, known=known)
        lm = load_lm(
            variant.model,
            wanted.model_args,
            wanted.plan.config_overrides,
            policy,
            trust_remote_code=variant.trust_remote_code,
            allow_pickle=variant.allow_pickle,
        )
        model = EditedModel(
            lm=lm,
            wanted=wanted,
            policy=policy,
            cache_dir=cache_dir,
            known=known,
            watched=watched,
        )
        if reusable:
            model.note()
        return LMScorer(
            lm,
            policy,
            model_type=variant.model,
            model_args=wanted.model_args,
            assigned=model.carry(wanted),
            reassigning=model.reassigned if reusable else None,
        )
