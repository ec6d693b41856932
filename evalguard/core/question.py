"""What a search measures with: an oracle, and what it says when an assignment cannot be built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """How often a search had a model, and in which way it came about.

    Attributes:
        started: in a new worker process.
        loaded: in the worker process of the one before.
        reassigned: by other values for settings of the one before, without loading it.
    """

    started: int = 0
    loaded: int = 0
    reassigned: int = 0

    def __add__(self, other: Loads) -> Loads:
        """Of several workers together."""
        return Loads(
            started=self.started + other.started,
            loaded=self.loaded + other.loaded,
            reassigned=self.reassigned + other.reassigned,
        )


Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]  # (n_settings,): which settings have their candidate value
Question = tuple[frozenset[str], Indices]
Refusal = Literal["cannot_build", "crashed", "out_of_memory", "timed_out", "not_finite"]


class Untestable(EvalguardError):
    """An assignment that cannot be built or run. It is neither good nor bad.

    ``reason`` says why in words, ``kind`` in one of a few.
    """

    def __init__(self, reason: str, *, kind: Refusal = "cannot_build", hint: str = "") -> None:
        super().__init__(reason, hint=hint)
        self.reason = reason
        self.kind: Refusal = kind


class Oracle(Protocol):
    """Scores documents under an assignment of the settings; the same question, the same answer."""

    @property
    def n_documents(self) -> int:
        """How many documents there are."""

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """Scores of these documents, higher is better, one each and in their order.

        Exactly ``candidate_settings`` have their candidate value, all others their reference.
        ``documents`` are indices below ``n_documents``, always whole blocks of one fixed order.

        Raises:
            Untestable: this assignment cannot be built or run.
        """


@runtime_checkable
class BlockOracle(Oracle, Protocol):
    """An oracle that scores documents in blocks of its own."""

    @property
    def blocks(self) -> Sequence[Indices]:
        """Every document once, in blocks that are scored together, each about a random sample.

        Every question is a union of whole blocks.
        """


@runtime_checkable
class ParallelOracle(Oracle, Protocol):
    """An oracle that can answer several questions at once."""

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        """As many answers, in their order; an Untestable is returned, not raised."""


@runtime_checkable
class ValueOracle(Oracle, Protocol):
    """An oracle that knows values of settings beside reference and candidate."""

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        """As ``measure``: these settings have these values, all others their candidate's."""


def request_scores(oracle: Oracle, questions: Sequence[Question]) -> list[Floats | Untestable]:
    """Ask an oracle, at once where it can; scores that are no numbers are no answer.

    Raises:
        UsageError: it did not answer with one score for each document.
        KeyboardInterrupt: from the oracle.
    """
    if len(questions) > 1 and isinstance(oracle, ParallelOracle):
        answers: list[Floats | Untestable] = oracle.measure_all(questions)
    else:
        answers = [_request_scores(oracle, *question) for question in questions]
    replies = [check_reply(answer) for answer in answers]
    for (_, documents), scores in zip(questions, replies, strict=True):
        if not isinstance(scores, Untestable) and scores.shape != documents.shape:
            raise UsageError(
                f"an oracle was asked about {documents.size} documents, and answered with scores "
                f"of shape {scores.shape}"
            )
    return replies


def _request_scores(
    oracle: Oracle, settings: frozenset[str], documents: Indices
) -> Floats | Untestable:
    try:
        return oracle.measure(settings, documents)
    except Untestable as refusal:
        return refusal


def check_reply(answer: Floats | Untestable) -> Floats | Untestable:
    """An answer; scores that are no numbers are none."""
    if isinstance(answer, Untestable):
        return answer
    scores = np.asarray(answer, dtype=np.float64)
    if np.isfinite(scores).all():
        return scores
    return Untestable("its scores are not all finite", kind="not_finite")
