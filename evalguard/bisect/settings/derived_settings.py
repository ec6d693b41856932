"""The candidate whose settings are searched: those declared, else those that nobody declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalguard.bisect.settings.config_settings import (
    argument_settings,
    config_settings,
    find_config_leftovers,
    find_shape_settings,
    generation_settings,
    tie_together,
    tokenizer_name,
    tokenizer_settings,
)
from evalguard.bisect.settings.hf_side import HFSide, describe_module_source
from evalguard.bisect.settings.module_settings import derive_module_settings
from evalguard.bisect.settings.weight_settings import DerivedWeights, weight_settings
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.config.options import BisectOver
from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import Constraint, Setting, Variant
from evalguard.engine.bisect_choice import names_off_reference, why_not_derivable
from evalguard.engine.sources import DumpSource, ModelSource, RunSource, Source
from evalguard.errors import SettingError, UsageError, error_text


def why_unsearchable(
    base: Source, candidate: Source, *, over: BisectOver = "settings"
) -> UsageError | None:
    """Say why no settings of a candidate can be searched, and what to do; None where some may be.

    Declared settings need the candidate's model alone, derived ones and parts of the model both.
    """
    if not isinstance(candidate, ModelSource):
        return UsageError(
            f"the candidate {candidate.name} is a {_kind(candidate)}: it cannot be run with other "
            "settings",
            hint=f"name the candidate's model in place of its {_kind(candidate).split()[-1]}",
        )
    if over != "settings":
        return _why_no_modules(base, candidate, over)
    if names_off_reference(candidate.variant):
        return None
    if candidate.variant.settings:
        return UsageError(
            f"every setting of the candidate {candidate.name} stands at its reference value: "
            "there is nothing to search",
            hint="leave out --set NAME=reference, or compare without a bisection",
        )
    if isinstance(base, ModelSource):
        return None
    kind = "a finished lm-eval run" if isinstance(base, RunSource) else "a stored base"
    return UsageError(
        f"the candidate {candidate.name} declares no settings, and they can be derived from two "
        f"models only: {base.name} is {kind}, without its model",
        hint="declare the candidate's settings in a guard file, or name the base's model with "
        "--base alone",
    )


def _kind(source: Source) -> str:
    return "dump" if isinstance(source, DumpSource) else "finished run"


def _why_no_modules(base: Source, candidate: ModelSource, over: str) -> UsageError | None:
    if not isinstance(base, ModelSource):
        return UsageError(
            f"{over} are searched by taking them from the base's model, and {base.name} is a "
            "finished run",
            hint="name the base's model with --base, or search the settings that the candidate "
            "declares",
        )
    try:
        describe_module_source(base.variant, candidate.variant)
    except (UsageError, SettingError) as error:
        return UsageError(str(error), hint=error.hint)
    return None


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
        derived = derive_settings(base.variant, candidate.variant)
        if not names_off_reference(derived.variant):
            why = "; ".join(derived.notes) or "the two models are the same"
            return f"the candidate declares no settings, and none can be derived: {why}"
        return cls(
            candidate=replace(candidate, variant=derived.variant),
            derived=True,
            groups=derived.groups,
            notes=derived.notes,
        )


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
    derived = _FoundSettings.of(*sides)
    added = _rename_duplicates(_undeclared(derived.settings, candidate), declared)
    names = {setting.name for setting in added}
    made = _with_settings(candidate, (*candidate.settings, *added))
    # Settings read the base's files too, with the leave that was given for them.
    pickled = sides[0].files is not None and sides[0].files.pickled
    constraints = [
        constraint
        for constraint in derived.constraints
        if {*constraint.when, *constraint.then} <= names
    ]
    edits = _edits(base, candidate)
    return DerivedCandidate(
        variant=replace(
            made,
            constraints=(*candidate.constraints, *constraints),
            allow_pickle=candidate.allow_pickle or pickled,
        ),
        groups={name: finer for name, finer in derived.groups.items() if name not in declared},
        notes=(*derived.notes, *edits),
        complete=derived.complete and not edits and _only_plain(candidate),
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
            tokens = [_explicit_tokenizer(setting, candidate) for setting in tokens]
        settings = [
            *(_following(setting, weights.switches) for setting in (*given, *tokens, *config)),
            *generation,
            *weights.settings,
        ]
        leftovers = find_config_leftovers(base, candidate, settings)
        open_ends = [
            *odd_arguments,
            *odd_tokens,
            *odd_config,
            *leftovers,
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
        return [setting for setting in settings if setting not in bound], (), notes
    return settings, tie_together(bound) if len(bound) > 1 else (), notes


def _following(one: Setting, switches: Mapping[str, str]) -> Setting:
    """An attribute of the configuration that says how weights are laid out goes with these."""
    of_config = one.target.kind in ("config", "model_args")
    return replace(one, follows=switches.get(one.target.path, "") if of_config else "")


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
        setting
        for setting in found
        if str(setting.target) not in targets and not (weights and setting.target.kind == "weights")
    ]


def _only_plain(candidate: Variant) -> bool:
    """Whether what the declared settings do at reference is known without loading."""
    return all(setting.target.kind in ("model_args", "config") for setting in candidate.settings)


def _rename_duplicates(added: Sequence[Setting], taken: Iterable[str]) -> list[Setting]:
    """Give settings other names than these; what follows one that is not added follows none."""
    known = set(taken)
    names = {
        setting.name: f"derived.{setting.name}" if setting.name in known else setting.name
        for setting in added
    }
    return [
        replace(setting, name=names[setting.name], follows=names.get(setting.follows, ""))
        for setting in added
    ]


def _with_settings(variant: Variant, settings: tuple[Setting, ...]) -> Variant:
    values = {setting.name: setting.candidate for setting in settings}
    current = {name: value for name, value in variant.assignment.items() if name in values}
    return replace(variant, settings=settings, assignment={**values, **current})


def _nothing_derived(candidate: Variant, note: str) -> DerivedCandidate:
    return DerivedCandidate(variant=candidate, notes=(note,), complete=False)
