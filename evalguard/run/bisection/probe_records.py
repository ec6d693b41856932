"""What is finished of probes: found where compare keeps it, and kept there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from evalguard.bisect.oracle import Refusal, Untestable
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import ComparedAnswer, Response
from evalguard.core.settings import digest_of
from evalguard.run.bisection.assigned_candidate import AssignedCandidate, ProbeAnswer
from evalguard.run.executing.block_store import BlockStore
from evalguard.run.executing.work import FinishedUnit, Unit
from evalguard.run.sources import ModelSource
from evalguard.store.fact_cache import FactCache

# Kinds of facts: why an assignment cannot be tested; of which models nothing is known before they
# are loaded, and something may be kept.
_REFUSALS, _PROBED = "refusals", "probed"


@dataclass(slots=True, kw_only=True)
class ProbeRecords:
    """Answers in the caches of scores and divergences, refusals among the facts.

    Attributes:
        store: where compare keeps them, too.
        facts: None: nothing is kept of refusals.
        question: digest of all that assignments are asked here.
        timeout: seconds that a call may take: more than before is another try.
    """

    store: BlockStore
    facts: FactCache | None
    question: str
    timeout: float | None = None
    _noted: set[str] = field(default_factory=set)

    def may_know(self, assigned: AssignedCandidate) -> bool:
        """Whether something may be kept of a model that only loading identifies."""
        if self.facts is None or assigned.known is not None:
            return False
        return self.facts.get(_PROBED, _name_of(assigned.source)) is not None

    def answers(self, assigned: AssignedCandidate, asked: Unit) -> Sequence[ProbeAnswer] | None:
        """Return kept answers to a unit: responses, or how they diverge from the base's.

        Raises:
            Untestable: it is kept that distributions cannot be compared.
        """
        if asked.beside is not None:
            compared = self.store.find_compared(asked, assigned.key)
            return None if compared is None else answers_of((), compared)
        return self.store.responses(asked.block, assigned.key)

    def keep(self, assigned: AssignedCandidate, done: FinishedUnit) -> None:
        """Keep an answer, as compare does.

        Raises:
            EvaluationError: it is not one for every request.
        """
        unit, name, model = done.answer.unit, assigned.source.name, done.description
        task = unit.block.requests[0].task
        self.store.keep(done.answer, assigned.key)
        self.store.scores.describe(assigned.key, name=name, task=task, model=model)
        if unit.beside is not None:
            key = unit.beside.pair_key(assigned.key)
            self.store.divergences.describe(key, name=f"base vs {name}", task=task, model=model)
        if self.facts is not None and assigned.known is None and assigned.key is not None:
            probed = _name_of(assigned.source)
            if probed not in self._noted:  # once, and not with every block
                self._noted.add(probed)
                self.facts.put(_PROBED, probed, {})

    def refusal(self, assigned: AssignedCandidate) -> Untestable | None:
        """Return why an assignment cannot be tested, where that is kept and still holds."""
        name = self._refusal_name(assigned)
        found = None if self.facts is None or name is None else self.facts.get(_REFUSALS, name)
        if found is None or found.get("kind") not in get_args(Refusal):
            return None
        # More time than before is another try.
        more_time = self.timeout is not None and self.timeout > float(found.get("seconds", 0.0))
        if found["kind"] == "timed_out" and more_time:
            return None
        return Untestable(
            str(found.get("reason")), kind=found["kind"], hint=str(found.get("hint", ""))
        )

    def refused(self, assigned: AssignedCandidate, why: Untestable, seconds: float) -> None:
        """Remember why an assignment cannot be tested; memory may be free the next time."""
        assigned.refusal = why
        name = self._refusal_name(assigned)
        if self.facts is None or name is None or why.kind == "out_of_memory":
            return
        told = {"kind": why.kind, "reason": redacted_text(why.reason), "hint": why.hint}
        seconds = max(seconds, self.timeout or 0.0)
        self.facts.put(_REFUSALS, name, {**told, "seconds": round(seconds, 3)})

    def _refusal_name(self, assigned: AssignedCandidate) -> str | None:
        return None if assigned.proof is None else digest_of([assigned.proof, self.question])


def answers_of(
    responses: Sequence[Response], compared: ComparedAnswer | None
) -> Sequence[ProbeAnswer]:
    """What was asked for: responses, or how their distributions diverge from the base's.

    Raises:
        Untestable: the distributions cannot be compared.
    """
    if compared is None:
        return responses
    if compared.reason:
        raise Untestable(f"its distributions cannot be compared: {compared.reason}")
    return compared.divergences


def _name_of(source: ModelSource) -> str:
    """What stands for a model before it is loaded: as it is declared, which proves nothing."""
    return digest_of([source.variant.digest, str(source.policy)])
