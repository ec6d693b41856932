"""Searchable: the candidate with the settings that are searched, declared or derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evalguard.pipeline.bisection.derived import derived
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.unsearchable import changed, unsearchable
from evalguard.pipeline.sources import ModelSource
from evalguard.pipeline.told_error import told
from evalguard.settings import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Searchable:
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
    def of(cls, finished: Finished) -> Searchable | str:
        """The candidate with the settings that it declares, or else with derived ones.

        Returns:
            What is searched, or why there is nothing.

        Raises:
            EvaluationError, SettingError: a model whose files cannot be read.
        """
        base, candidate = finished.sources[0], finished.candidate
        assert candidate is not None
        refusal = unsearchable(base, candidate)
        if refusal is not None:
            return told(refusal)
        if changed(candidate.variant):
            return cls(candidate=candidate)
        assert isinstance(base, ModelSource)
        found = derived(base.variant, candidate.variant)
        if not changed(found.variant):
            why = "; ".join(found.notes) or "the two models are the same"
            return f"the candidate declares no settings, and none can be derived: {why}"
        return cls(
            candidate=replace(candidate, variant=found.variant),
            derived=True,
            groups=found.groups,
            notes=found.notes,
        )
