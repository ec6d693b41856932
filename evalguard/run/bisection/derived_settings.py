"""The candidate with the settings that are searched.

Those it declares, or those derived from what differs between two Hugging Face models (config,
generation config, tokenizer, and the rest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import Constraint, Setting, Target, Value, Variant
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.models.checkpoint_files import checkpoint_folder, hub_snapshot
from evalguard.models.checkpoint_tensors import compare_shapes
from evalguard.models.comparison import (
    ConfigDifference,
    compare_configs,
    load_tokenizer,
    puts_bos_first,
    to_json_value,
    tokenizer_files,
)
from evalguard.models.load_failures import silence_libraries
from evalguard.models.loading import build_empty_model, config_model_args, read_effective_config
from evalguard.run.bisection.model_differences import (
    DerivedWeights,
    HFSide,
    argument_setting,
    argument_settings,
    weight_settings,
    why_not_derivable,
)
from evalguard.run.bisection.subject import (
    FinishedComparison,
    names_off_reference,
    why_unsearchable,
)
from evalguard.run.meter import error_text
from evalguard.run.modules.module_settings import derive_module_settings
from evalguard.run.sources import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchableCandidate:
    """What is searched.

    Attributes:
        candidate: as it was scored; at least one of its settings is not at reference.
        derived: whether nobody declared its settings.
        groups: setting -> finer ones that say the same together.
        notes: what could not be derived, and why.
    """

    candidate: ModelSource
    derived: bool = False
    groups: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, finished: FinishedComparison) -> SearchableCandidate | str:
        """The candidate with the settings that it declares, or else with derived ones.

        Where layers or modules are searched, with one for each of them.

        Returns:
            What is searched, or why there is nothing.

        Raises:
            EvaluationError, SettingError: a model whose files cannot be read.
        """
        base, candidate = finished.sources[0], finished.candidate
        assert candidate is not None
        over = finished.choices.bisect.over
        refusal = why_unsearchable(base, candidate, over=over)
        if refusal is not None:
            return error_text(refusal)
        if over != "settings":
            assert isinstance(base, ModelSource)
            parts = derive_module_settings(base.variant, candidate.variant, over)
            return cls(
                candidate=replace(candidate, variant=parts.variant),
                derived=True,
                groups=parts.groups,
                notes=parts.notes,
            )
        if names_off_reference(candidate.variant):
            return cls(candidate=candidate)
        assert isinstance(base, ModelSource)
        found = derive_settings(base.variant, candidate.variant)
        if not names_off_reference(found.variant):
            why = "; ".join(found.notes) or "the two models are the same"
            return f"the candidate declares no settings, and none can be derived: {why}"
        return cls(
            candidate=replace(candidate, variant=found.variant),
            derived=True,
            groups=found.groups,
            notes=found.notes,
        )


# Settings that nobody declared: what differs between two Hugging Face models.


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedCandidate:
    """A candidate with the settings that lead to it from its base.

    Attributes:
        variant: the candidate with these settings added to those that it declares, all at their
            candidate values, where it is the candidate itself.
        groups: setting -> finer ones that say the same together, for a second search inside a
            guilty one: weights of a kind -> of each layer -> of each module.
        notes: what could not be derived, and why; what is the same and was left out.
        complete: whether the settings cover every difference that was found, so that the variant
            with all of them at reference computes what the base computes, bit for bit.
    """

    variant: Variant
    groups: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool = True

    def refined(self, *names: str) -> Variant:
        """Return the variant with some of its settings replaced by their finer ones.

        Names without finer settings stay. All settings are at their candidate values.
        """
        settings = tuple(
            finer
            for one in self.variant.settings
            for finer in (self.groups.get(one.name, (one,)) if one.name in names else (one,))
        )
        return _with_settings(self.variant, settings)


def derive_settings(base: Variant, candidate: Variant) -> DerivedCandidate:
    """Derive settings from the files of two models; no weights are loaded, one pair at a time read.

    Settings that the candidate declares stay, and win over derived ones with the same target; what
    they cover at their reference values is not derived again.

    Raises:
        EvaluationError: a model that is not there.
        SettingError: a declared setting that names nothing.
    """
    for variant in (base, candidate):
        if why := why_not_derivable(variant):
            return _nothing_derived(candidate, f"{why}: declare settings in a guard file")
    declared = {setting.name: setting.reference for setting in candidate.settings}
    sides = HFSide.of(base), HFSide.of(candidate.assigned(declared))
    found = _FoundSettings.of(*sides)
    added = _rename_duplicates(_undeclared(found.settings, candidate), declared)
    names = {setting.name for setting in added}
    made = _with_settings(candidate, (*candidate.settings, *added))
    # Settings read the base's files too, with the leave that was given for them.
    pickled = sides[0].files is not None and sides[0].files.pickled
    constraints = [one for one in found.constraints if {*one.when, *one.then} <= names]
    edits = _edits(base, candidate)
    return DerivedCandidate(
        variant=replace(
            made,
            constraints=(*candidate.constraints, *constraints),
            allow_pickle=candidate.allow_pickle or pickled,
        ),
        groups={name: finer for name, finer in found.groups.items() if name not in declared},
        notes=(*found.notes, *edits),
        complete=found.complete and not edits and _only_plain(candidate),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundSettings:
    settings: list[Setting]
    groups: Mapping[str, tuple[Setting, ...]]
    notes: list[str]
    constraints: tuple[Constraint, ...]
    complete: bool

    @classmethod
    def of(cls, base: HFSide, candidate: HFSide) -> _FoundSettings:
        weights = weight_settings(base, candidate)
        given, odd_arguments = argument_settings(base, candidate)
        tokens, odd_tokens = tokenizer_settings(base, candidate)
        config, constraints, odd_config = _config_parts(base, candidate, weights)
        generation = generation_settings(base, candidate)
        if weights.whole:
            tokens = [_explicit_tokenizer(one, candidate) for one in tokens]
        settings = [*given, *tokens, *config, *generation, *weights.settings]
        left = find_config_leftovers(base, candidate, settings)
        open_ends = [
            *odd_arguments,
            *odd_tokens,
            *odd_config,
            *left,
        ]
        return cls(
            settings=settings,
            groups=weights.groups,
            notes=[*weights.notes, *open_ends],
            constraints=constraints,
            complete=weights.complete and not open_ends,
        )


def _config_parts(
    base: HFSide, candidate: HFSide, weights: DerivedWeights
) -> tuple[list[Setting], tuple[Constraint, ...], list[str]]:
    """Settings of the config; what changes shapes comes with a whole checkpoint, or together."""
    if weights.whole and type(base.config) is not type(candidate.config):
        return [], (), []
    settings, notes = config_settings(base, candidate)
    bound = find_shape_settings(settings, candidate)
    if not bound:
        return settings, (), notes
    if weights.whole:
        return [one for one in settings if one not in bound], (), notes
    return settings, tie_together(bound) if len(bound) > 1 else (), notes


def _explicit_tokenizer(one: Setting, candidate: HFSide) -> Setting:
    """A tokenizer by its name: where the checkpoint changes, its own would be another one."""
    if one.name != "tokenizer" or one.candidate is not None:
        return one
    return replace(one, candidate=tokenizer_name(candidate))


def _edits(base: Variant, candidate: Variant) -> list[str]:
    """Settings of the base that edit it after loading, which no setting of a candidate copies."""
    own = plan_conversion(base)
    theirs = plan_conversion(candidate.assigned({s.name: s.reference for s in candidate.settings}))
    edits = [
        name
        for name, (target, value) in own.targets.items()
        if target.kind not in ("model_args", "config")
        and (str(target), value) not in {(str(t), v) for t, v in theirs.targets.values()}
    ]
    return [f"setting '{name}' of the base is not a setting of the candidate" for name in edits]


def _undeclared(found: Iterable[Setting], candidate: Variant) -> list[Setting]:
    """Derived settings whose place no declared one writes; declared weights rule all weights."""
    targets = {str(setting.target) for setting in candidate.settings}
    weights = any(setting.target.kind == "weights" for setting in candidate.settings)
    return [
        one
        for one in found
        if str(one.target) not in targets and not (weights and one.target.kind == "weights")
    ]


def _only_plain(candidate: Variant) -> bool:
    """Whether what the declared settings do at reference is known without loading."""
    return all(one.target.kind in ("model_args", "config") for one in candidate.settings)


def _rename_duplicates(added: Iterable[Setting], taken: Iterable[str]) -> list[Setting]:
    known = set(taken)
    return [replace(one, name=f"derived.{one.name}") if one.name in known else one for one in added]


def _with_settings(variant: Variant, settings: tuple[Setting, ...]) -> Variant:
    values = {one.name: one.candidate for one in settings}
    kept = {name: value for name, value in variant.assignment.items() if name in values}
    return replace(variant, settings=settings, assignment={**values, **kept})


def _nothing_derived(candidate: Variant, note: str) -> DerivedCandidate:
    return DerivedCandidate(variant=candidate, notes=(note,), complete=False)


# Settings from the configs of two models of one class.


def config_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings ``config.X`` for two models of one class, and notes on what is left out.

    Attributes that change the shapes of weights are left out: they come with the weights. What an
    argument of loading sets, that argument's setting covers.
    """
    settings: list[Setting] = []
    notes: list[str] = []
    covered = {
        name
        for side in (base, candidate)
        for name in config_model_args(side.config, side.model_args)
    }
    for one in compare_configs(base.config, candidate.config):
        if one.path.partition(".")[0] in covered:
            continue
        if not one.known:
            notes.append(
                f"config.{one.path}: {one.base!r} in the base, {one.candidate!r} in the candidate; "
                "the config class does not know it, so it cannot be set"
            )
        else:
            settings.append(_config_setting(one))
    return settings, notes


def find_shape_settings(settings: Iterable[Setting], candidate: HFSide) -> list[Setting]:
    """Return the settings that, at their reference value alone, give weights other shapes."""
    return [
        one for one in settings if not _same_shapes(candidate, {one.target.path: one.reference})
    ]


def tie_together(settings: Iterable[Setting]) -> tuple[Constraint, ...]:
    """Say that settings are at their reference values together, or at their candidate's."""
    first, *others = [*settings]
    return tuple(
        Constraint(when={one.name: one.reference}, then={other.name: other.reference})
        for mate in others
        for one, other in ((first, mate), (mate, first))
    )


def find_config_leftovers(
    base: HFSide, candidate: HFSide, settings: Iterable[Setting]
) -> tuple[str, ...]:
    """Build the config of the all-reference model, and say where it still is not the base's."""
    values = {one.target.path: one.reference for one in settings if one.target.kind == "config"}
    arguments = {
        one.target.path: one.reference for one in settings if one.target.kind == "model_args"
    }
    given = {**candidate.model_args, **arguments}
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    try:
        made = read_effective_config(given, {**candidate.overrides, **values}, **trusted)
    except EvalguardError as error:
        return (f"the config of the base cannot be reached with settings: {error}",)
    return tuple(
        f"config.{one.path} stays {one.candidate!r} where the base has {one.base!r}"
        for one in compare_configs(base.config, made)
        if one.known
    )


def _config_setting(one: ConfigDifference) -> Setting:
    return Setting(
        name=f"config.{one.path}",
        reference=one.base,
        candidate=one.candidate,
        target=Target(kind="config", path=one.path),
    )


def _same_shapes(candidate: HFSide, values: Mapping[str, Value]) -> bool:
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    if candidate.model is None:
        return True
    try:
        config = read_effective_config(
            candidate.model_args, {**candidate.overrides, **values}, **trusted
        )
        changed = build_empty_model(config, candidate.model_args, **trusted)
    except EvalguardError:
        return False
    return not compare_shapes(candidate.model, changed)


# Settings from the generation configs of two models, which only generating tasks read.


_GENERATION_CONFIG = "generation_config.json"
# Bookkeeping, and what lm-eval says at every call.
_IGNORED_VALUES = frozenset(
    {"transformers_version", "max_length", "max_new_tokens", "pad_token_id", "use_cache"}
)


def generation_settings(base: HFSide, candidate: HFSide) -> list[Setting]:
    """Return settings ``generation.X`` where the two generation configs differ.

    A model without a generation_config.json has what transformers derives from its config; where
    neither has the file, settings of the config cover it.
    """
    folders = [_generation_folder(side.model_args) for side in (base, candidate)]
    if not any(folders):
        return []
    one, other = _generation_values(base, folders[0]), _generation_values(candidate, folders[1])
    return [
        Setting(
            name=f"generation.{name}",
            reference=one[name],
            candidate=other[name],
            target=Target(kind="generation", path=name),
        )
        for name in one
        if name in other and name not in _IGNORED_VALUES and one[name] != other[name]
    ]


def _generation_values(side: HFSide, folder: Path | None) -> dict[str, Value]:
    from transformers import GenerationConfig

    with silence_libraries():
        if folder is None:
            config: Any = GenerationConfig.from_model_config(side.config)
        else:
            config = GenerationConfig.from_pretrained(str(folder))
    return {
        name: to_json_value(value)
        for name, value in vars(config).items()
        if not name.startswith("_")
    }


def _generation_folder(model_args: Mapping[str, Value]) -> Path | None:
    """The folder with a model's generation config; None if it has none."""
    source = str(model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    folder = checkpoint_folder(source, str(model_args.get("revision") or "main"), subfolder)
    found = None if folder is None else folder / subfolder
    return found if found is not None and (found / _GENERATION_CONFIG).is_file() else None


# Settings from the tokenizers of two models: the files, and BOS.


def tokenizer_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings for tokenizers that differ, and notes.

    Where one puts BOS before a text and the other does not, that is a setting of its own, as far
    as BOS is all that the tokenizers put around a text.
    """
    if _tokenizer_source(base.model_args) == _tokenizer_source(candidate.model_args):
        return [], []
    try:
        for side in (base, candidate):  # hub files come here when they are first asked for
            load_tokenizer(side.model_args, trust_remote_code=side.variant.trust_remote_code)
        if _same_files(base, candidate):
            return [], []
        settings = [
            argument_setting("tokenizer", tokenizer_name(base), _tokenizer_value(candidate))
        ]
        settings += _bos_settings(base, candidate)
    except EvaluationError as error:
        return [], [f"tokenizer: {error}"]
    return settings, []


def tokenizer_name(side: HFSide) -> str:
    """Name a side's tokenizer so that it is found whatever the other arguments are."""
    source, revision, subfolder = _tokenizer_source(side.model_args)
    folder = Path(source).expanduser()
    if folder.exists():
        return str(folder / subfolder)
    if revision == "main" and not subfolder:
        return source
    snapshot = hub_snapshot(source, revision, subfolder)
    return source if snapshot is None else str(snapshot / subfolder)


def _tokenizer_value(side: HFSide) -> Value:
    return side.model_args.get("tokenizer")


def _bos_settings(base: HFSide, candidate: HFSide) -> list[Setting]:
    if base.model_args.get("add_bos_token") != candidate.model_args.get("add_bos_token"):
        return []  # an argument of loading, which is a setting already
    if base.model_args.get("add_bos_token") is not None:
        return []  # said, and the same
    first = [
        puts_bos_first(side.model_args, trust_remote_code=side.variant.trust_remote_code)
        for side in (base, candidate)
    ]
    if None in first or first[0] == first[1]:
        return []
    return [argument_setting("add_bos_token", first[0], first[1])]


def _same_files(base: HFSide, candidate: HFSide) -> bool:
    one, other = (tokenizer_files(side.model_args) for side in (base, candidate))
    return bool(one) and one == other


def _tokenizer_source(model_args: Mapping[str, Value]) -> tuple[str, str, str]:
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    revision = str(model_args.get("revision") or "main")
    return source, revision, str(model_args.get("subfolder") or "")
