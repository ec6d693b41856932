"""Settings that nobody declared: what differs between two Hugging Face models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from evalguard.conversion.planning import plan
from evalguard.pipeline.bisection.derived_arguments import argument_settings
from evalguard.pipeline.bisection.derived_config import (
    config_settings,
    held_together,
    left_over,
    shaping,
)
from evalguard.pipeline.bisection.derived_generation import generation_settings
from evalguard.pipeline.bisection.derived_tokens import token_settings, tokenizer_name
from evalguard.pipeline.bisection.derived_weights import DerivedWeights, weight_settings
from evalguard.pipeline.bisection.sides import HFSide, why_not_derivable
from evalguard.settings import Constraint, Setting, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
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
        return _at_candidate(self.variant, settings)


def derived(base: Variant, candidate: Variant) -> Derived:
    """Derive settings from the files of two models; no weights are loaded, one pair at a time read.

    Settings that the candidate declares stay, and win over derived ones with the same target; what
    they cover at their reference values is not derived again.

    Raises:
        EvaluationError: a model that is not there.
        SettingError: a declared setting that names nothing.
    """
    for variant in (base, candidate):
        if why := why_not_derivable(variant):
            return _nothing(candidate, f"{why}: declare settings in a guard file")
    declared = {setting.name: setting.reference for setting in candidate.settings}
    sides = HFSide.of(base), HFSide.of(candidate.assigned(declared))
    found = _Found.of(*sides)
    added = _named_apart(_undeclared(found.settings, candidate), declared)
    names = {setting.name for setting in added}
    made = _at_candidate(candidate, (*candidate.settings, *added))
    # Settings read the base's files too, with the leave that was given for them.
    pickled = sides[0].files is not None and sides[0].files.pickled
    constraints = [one for one in found.constraints if {*one.when, *one.then} <= names]
    edits = _edits(base, candidate)
    return Derived(
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
class _Found:
    settings: list[Setting]
    groups: Mapping[str, tuple[Setting, ...]]
    notes: list[str]
    constraints: tuple[Constraint, ...]
    complete: bool

    @classmethod
    def of(cls, base: HFSide, candidate: HFSide) -> _Found:
        weights = weight_settings(base, candidate)
        given, odd_arguments = argument_settings(base, candidate)
        tokens, odd_tokens = token_settings(base, candidate)
        config, constraints, odd_config = _config(base, candidate, weights)
        generation = generation_settings(base, candidate)
        if weights.whole:
            tokens = [_explicit(one, candidate) for one in tokens]
        settings = [*given, *tokens, *config, *generation, *weights.settings]
        left = left_over(base, candidate, settings)
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


def _config(
    base: HFSide, candidate: HFSide, weights: DerivedWeights
) -> tuple[list[Setting], tuple[Constraint, ...], list[str]]:
    """Settings of the config; what changes shapes comes with a whole checkpoint, or together."""
    if weights.whole and type(base.config) is not type(candidate.config):
        return [], (), []
    settings, notes = config_settings(base, candidate)
    bound = shaping(settings, candidate)
    if not bound:
        return settings, (), notes
    if weights.whole:
        return [one for one in settings if one not in bound], (), notes
    return settings, held_together(bound) if len(bound) > 1 else (), notes


def _explicit(one: Setting, candidate: HFSide) -> Setting:
    """A tokenizer by its name: where the checkpoint changes, its own would be another one."""
    if one.name != "tokenizer" or one.candidate is not None:
        return one
    return replace(one, candidate=tokenizer_name(candidate))


def _edits(base: Variant, candidate: Variant) -> list[str]:
    """Settings of the base that edit it after loading, which no setting of a candidate copies."""
    own = plan(base)
    theirs = plan(candidate.assigned({s.name: s.reference for s in candidate.settings}))
    edits = [
        name
        for name, (target, value) in own.targets.items()
        if target.kind not in ("model_args", "config")
        and (str(target), value) not in {(str(t), v) for t, v in theirs.targets.values()}
    ]
    return [f"setting '{name}' of the base is no setting of the candidate" for name in edits]


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


def _named_apart(added: Iterable[Setting], taken: Iterable[str]) -> list[Setting]:
    known = set(taken)
    return [replace(one, name=f"derived.{one.name}") if one.name in known else one for one in added]


def _at_candidate(variant: Variant, settings: tuple[Setting, ...]) -> Variant:
    values = {one.name: one.candidate for one in settings}
    kept = {name: value for name, value in variant.assignment.items() if name in values}
    return replace(variant, settings=settings, assignment={**values, **kept})


def _nothing(candidate: Variant, note: str) -> Derived:
    return Derived(variant=candidate, notes=(note,), complete=False)
