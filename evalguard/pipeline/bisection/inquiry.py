"""Inquiry: whose settings are asked about, and among what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evalguard.answer_scale import AnswerScale
from evalguard.gate_reason import Key
from evalguard.limit_scale import LimitScale
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import ModelSource, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTo:
    """A limit that is searched: its scale, and the base, which has to run for distributions."""

    scale: LimitScale | AnswerScale
    base: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Whose settings are asked about, and what.

    Attributes:
        candidate: as it was compared; its settings that are not at reference are searched.
        scored: base and candidate, as compared.
        key: (task, filter, metric) whose drift is searched.
        held_to: the limit that ``key`` names, where it is no metric.
    """

    candidate: ModelSource
    scored: tuple[Scored, Scored]
    key: Key
    held_to: HeldTo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Among what an inquiry is made.

    Attributes:
        choices, options: of the comparison.
        journal: where finished probes are written down; None: nowhere.
        say: takes what a person is to know.
        jobs: worker processes at the same time.
        meter: of the comparison, whose times are the first estimate.
    """

    choices: Choices
    options: CompareOptions
    journal: Path | None
    say: Callable[[str], None]
    jobs: int = 1
    meter: Meter | None = None
