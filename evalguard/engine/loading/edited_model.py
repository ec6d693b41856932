"""EditedModel: a loaded model that carries one assignment of its settings, and then another."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from evalguard.conversion.edits import apply, list_edited
from evalguard.conversion.observed_reads import KnownDigests
from evalguard.conversion.planning import plan_conversion
from evalguard.conversion.readback import AsLoaded, read_arguments, read_edits
from evalguard.conversion.taken_parts import ReadTensors, take_modules, take_weights
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.engine.loading.foreign_code import (
    ELSEWHERE_PREFIX,
    brings_code,
    mixes_code_with_modules,
    runs_other_code,
)
from evalguard.engine.loading.known_models import (
    PATCH_PREFIX,
    PLACEMENT_ARGUMENTS,
    LoadPlan,
    prove_files,
    taken_sources,
)
from evalguard.errors import EvaluationError, SettingError, UsageError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.assigned_model import AssignedModel, EditedAttributes
from evalguard.models.loading import load_lm
from evalguard.models.process_state import silence_libraries, use_threads
from evalguard.models.served.calls import is_served
from evalguard.store.fact_cache import BudgetStore

if TYPE_CHECKING:
    import torch

# Loads a variant on a device and edits it as its settings say; its torch module.
LoadEdited = Callable[[Variant], Any]


@dataclass(slots=True, kw_only=True)
class ModuleSources:
    """Other models, each loaded once and given back as it was loaded.

    What belongs to a model as a whole is that of the model which takes modules: dtype, device and
    attention implementation. Masks are made outside of the layers, for one implementation.

    Attributes:
        load: loads a model with its own settings, as any other.
        were_loaded: whether one ever was, in this process.
    """

    load: LoadEdited
    _files: Mapping[str, Value] = field(default_factory=dict)
    _loaded: dict[str, tuple[Any, AsLoaded]] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    were_loaded: bool = field(default=False, init=False)

    def renew(self, files: Mapping[str, Value] | None) -> None:
        """Give every model back as it was loaded; one that cannot be is loaded anew when needed.

        Args:
            files: digests of the files of all that are needed now; None: they cannot be known.
        """
        known = {name: self._files.get(name, digest) for name, digest in (files or {}).items()}
        if files is None or known != files:
            self._loaded.clear()  # of other files by now, or nobody knows
        self._files = {**self._files, **(files or {})}
        for key in self._used & self._loaded.keys():
            if not self._loaded[key][1].restore():
                del self._loaded[key]
        self._used.clear()

    def model(self, source: Variant, into: HostModel) -> Any:
        """The torch module of a model whose modules fit into another one.

        Raises:
            EvaluationError: as loading does.
            SettingError: one of its settings did not take.
        """
        wanted = into.adapt(source)
        key = wanted.digest
        if key not in self._loaded:
            self.were_loaded = True
            model = self.load(wanted)
            self._loaded[key] = model, AsLoaded(SimpleNamespace(), model)
        self._used.add(key)
        return self._loaded[key][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostModel:
    """What a model that takes modules imposes on those that it takes them from.

    Attributes:
        dtype: in which most of its weights are computed with, before settings edit it.
        device: on which all of it is.
        attention: its attention implementation, "" where it has none.
        trust_remote_code, allow_pickle: leaves that were given for it.
    """

    dtype: str
    device: str
    attention: str
    trust_remote_code: bool
    allow_pickle: bool

    @classmethod
    def of(cls, model: Any, variant: Variant, setting: str) -> HostModel:
        """Read them off a model as it was loaded, before it is edited.

        Raises:
            SettingError: it is none that can take modules.
        """
        from transformers import PreTrainedModel

        from evalguard.models.checkpoint_tensors import computing_dtype

        if not isinstance(model, PreTrainedModel):
            raise SettingError(
                f"setting '{setting}': modules of a {type(model).__name__} cannot be replaced",
                hint="module: settings work with transformers models, without peft",
                setting=setting,
            )
        devices = {str(tensor.device) for tensor in model.parameters()}
        if len(devices) != 1 or "meta" in devices:
            raise SettingError(
                f"setting '{setting}': modules cannot be replaced in a model that lies on "
                f"{', '.join(sorted(devices)) or 'no device'}",
                hint="load it on one device, without offloading or parallelize",
                setting=setting,
            )
        return cls(
            dtype=computing_dtype(model),
            device=devices.pop(),
            attention=str(getattr(model.config, "_attn_implementation", None) or ""),
            trust_remote_code=variant.trust_remote_code,
            allow_pickle=variant.allow_pickle,
        )

    def adapt(self, source: Variant) -> Variant:
        """A source as it is to be loaded for this model."""
        arguments: dict[str, Value] = {
            name: value
            for name, value in source.model_args.items()
            if name not in PLACEMENT_ARGUMENTS
        }
        arguments |= {"dtype": self.dtype, "device": self.device}
        if self.attention:
            arguments["attn_implementation"] = self.attention
        return replace(
            source,
            model_args=arguments,
            settings=tuple(
                setting for setting in source.settings if str(setting.target) not in _OF_HOST
            ),
            trust_remote_code=self.trust_remote_code,
            allow_pickle=self.allow_pickle,
        )


_OF_HOST = frozenset(f"model_args.{name}" for name in ("dtype", "device", "attn_implementation"))


def set_token_budget(
    lm: Any, policy: ScoringPolicy, *, threads: int, cache_dir: Path
) -> Callable[[int], None]:
    """Give a model that cuts batches by tokens its budget.

    Returns:
        A function that remembers a smaller one, for where memory runs out.
    """
    if not getattr(lm, "own_path", False) or lm.sequences is not None:
        return lambda _: None
    from evalguard.models.hf.budget_search import describe_budget_conditions

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
    from evalguard.models.hf.budget_search import CPU_BUDGET, measure_token_budget

    return CPU_BUDGET if lm.device.type == "cpu" else measure_token_budget(lm)


def _store_budget(store: BudgetStore, facts: dict[str, Any], budget: int) -> None:
    # A folder that cannot be written costs the next run a measurement; the score cache says so.
    with contextlib.suppress(OSError):
        store.put(facts, budget)


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
        as_loaded: what it was before its settings edited it; None: nobody noted that.
        sources: other models, whose modules its settings take.
    """

    lm: Any
    wanted: LoadPlan
    policy: ScoringPolicy
    cache_dir: Path
    known: KnownDigests | None
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
            with silence_libraries():  # of a packed model's first pass, which unpacks it
                effective |= take_modules(model, plan.modules, sources)
        if self.as_loaded is not None:
            self.as_loaded.set_aside(_fits_in_memory)
        threads = _thread_count(self.policy, self.lm)
        why_open = self._why_open()
        lower = set_token_budget(self.lm, self.policy, threads=threads, cache_dir=self.cache_dir)
        return AssignedModel(
            effective={setting.name: effective[setting.name] for setting in variant.settings},
            provenance=self._provenance(wanted, effective),
            # a client's texts are encoded here, whatever the server is
            revision="" if why_open else variant.revision,
            threads=threads,
            edited={} if model is None else _list_edited(model, wanted),
            caveats=_not_kept_note(why_open),
            on_smaller_budget=lower,
        )

    def _module_sources(
        self, model: torch.nn.Module | None, wanted: LoadPlan
    ) -> Callable[[Variant], torch.nn.Module]:
        """What loads the models that modules are taken from, to fit into this one as it is now."""
        self.sources.renew(
            None if wanted.proofs is None else taken_sources(wanted.proofs["weights"])
        )
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

    def _why_open(self) -> str:
        """Why nothing may be kept for other runs, as far as code is to blame; "" where it may."""
        if not brings_code(self.wanted.variant, self.wanted.plan):
            module = runs_other_code()
            return module and (
                f"{module}, code that another model, a hook or a task has brought into this "
                "process, may have changed what it computes with"
            )
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

        Modules beside code that a model brings are the same in every process of a run that loads
        both, and what they are is told with the run.

        Raises:
            EvaluationError: they were others before.
        """
        proofs = prove_files(wanted.variant, wanted.plan, wanted.model_args, self.known)
        for_run = all(mixes_code_with_modules(o.variant, o.plan) for o in (self.wanted, wanted))
        if proofs is None or (self._why_open() and not for_run):
            return None
        before = proofs if wanted.proofs is None else wanted.proofs  # loading downloads
        if _without_patches(before) != _without_patches(proofs):
            raise EvaluationError(
                f"files that '{wanted.variant.name}' is loaded from changed while it was being "
                "loaded",
                hint="run the same command again when they are finished",
            )
        settings = wanted.plan.settings_for_identity(effective)
        return {**before, "code": _with_patches(before, proofs), "settings": settings}


def _list_edited(model: torch.nn.Module, wanted: LoadPlan) -> EditedAttributes:
    """Return what ``attr:`` settings have set that are not at their reference."""
    references = {setting.name: setting.reference for setting in wanted.variant.settings}
    return {
        edit.setting: list_edited(model, edit)
        for edit in wanted.plan.attributes
        if references[edit.setting] != edit.value
    }


def _without_patches(proofs: Mapping[str, Value]) -> dict[str, Value]:
    code = {n: d for n, d in _code(proofs).items() if not n.startswith(_LATE)}
    return {**proofs, "code": code}


def _with_patches(before: Mapping[str, Value], found: Mapping[str, Value]) -> dict[str, Value]:
    """The code that loading began with, and what it has brought."""
    patches = {n: d for n, d in _code(found).items() if n.startswith(_LATE)}
    return {**_code(before), **patches}


# What loading itself brings.
_LATE = (PATCH_PREFIX, ELSEWHERE_PREFIX)


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
            setting=names[0],
        )
    return model
