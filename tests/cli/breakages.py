"""Ways in which a candidate is broken, each with what must be seen of it, by kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from written_runs import WrittenRun

Change = Callable[[WrittenRun, WrittenRun], None]
Damage = Callable[[Path], None]
FAILS, NOTHING_KNOWN, UNDECIDED, REFUSED = 1, 3, 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A way to be broken, the exit code it must give, and a pattern of the first screen."""

    kind: str
    name: str
    code: int
    says: str
    change: Change | None = None
    damage: Damage | None = None
    words: tuple[str, ...] = ()


@dataclass(slots=True)
class Kind:
    """Breakages of one kind, entered by decorators."""

    name: str
    breakages: list[Breakage] = field(default_factory=list)

    def breaks(self, code: int, says: str, *words: str) -> Callable[[Change], Change]:
        """Enter a change of two runs, before they are written."""

        def enter(change: Change) -> Change:
            self._enter(change.__name__, code, says, words, change=change)
            return change

        return enter

    def damages(self, code: int, says: str, *words: str) -> Callable[[Damage], Damage]:
        """Enter a damage to the candidate's files."""

        def enter(damage: Damage) -> Damage:
            self._enter(damage.__name__, code, says, words, damage=damage)
            return damage

        return enter

    def _enter(
        self,
        name: str,
        code: int,
        says: str,
        words: tuple[str, ...],
        *,
        change: Change | None = None,
        damage: Damage | None = None,
    ) -> None:
        self.breakages.append(
            Breakage(
                kind=self.name,
                name=name.replace("_", " "),
                code=code,
                says=says,
                change=change,
                damage=damage,
                words=words,
            )
        )
