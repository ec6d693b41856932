"""An oracle whose errors end a search with what is known, as Ctrl-C does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from evalguard.bisect.oracle import (
    Floats,
    Indices,
    Question,
    Untestable,
)
from evalguard.core.settings import Value
from evalguard.errors import Interrupted
from evalguard.run.bisection.settings_oracle import SettingsOracle

_LOG = logging.getLogger(__name__)


class StoppableOracle:
    """Asks another oracle.

    A search takes a KeyboardInterrupt for its end, and returns its best result so far. A full disk
    or a base that fails ends it likewise, and ``failure`` says so; an assignment that cannot run
    is an answer.

    Attributes:
        failure: the error that ended the search; None so far.
        interrupted: whether the user did.
        reference: the scores of all documents with every setting at reference, once they are known.
    """

    def __init__(self, oracle: SettingsOracle) -> None:
        self._oracle = oracle
        self.failure: Exception | None = None
        self.interrupted = False
        self.reference: Floats | None = None

    @property
    def n_documents(self) -> int:
        """How many documents there are."""
        return self._oracle.n_documents

    @property
    def blocks(self) -> Sequence[Indices]:
        """In which documents are scored together."""
        return self._oracle.blocks

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """See ``Oracle``."""
        answer = self.measure_all([(candidate_settings, documents)])[0]
        if isinstance(answer, Untestable):
            raise answer
        return answer

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        """See ``ParallelOracle``."""
        try:
            answers = self._oracle.measure_all(questions)
        except (Exception, KeyboardInterrupt) as error:
            raise self._stopped(error) from error
        for (settings, documents), answer in zip(questions, answers, strict=True):
            if not settings and documents.size == self.n_documents:
                self.reference = None if isinstance(answer, Untestable) else answer
        return answers

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        """See ``ValueOracle``."""
        try:
            return self._oracle.measure_values(values, documents)
        except Untestable:
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise self._stopped(error) from error

    def _stopped(self, error: Exception | KeyboardInterrupt) -> KeyboardInterrupt:
        """What ends the search; what was found before it stands."""
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            self.interrupted = True
        else:
            _LOG.info("the search failed", exc_info=True)  # shown under --debug
            self.failure = error
        return KeyboardInterrupt()
