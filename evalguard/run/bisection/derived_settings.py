"""The candidate whose settings are searched: those declared, else those that nobody declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import Constraint, Setting, Variant
from evalguard.errors import error_text
from evalguard.run.bisection.argument_settings import argument_settings
from evalguard.run.bisection.config_settings import (
    config_settings,
    find_config_leftovers,
    find_shape_settings,
    tie_together,
)
from evalguard.run.bisection.generation_settings import generation_settings
from evalguard.run.bisection.model_differences import HFSide, why_not_derivable
from evalguard.run.bisection.tokenizer_settings import tokenizer_name, tokenizer_settings
from evalguard.run.bisection.unsearchable import names_off_reference, why_unsearchable
from evalguard.run.bisection.weight_settings import DerivedWeights, weight_settings
from evalguard.run.finished_comparison import FinishedComparison
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
