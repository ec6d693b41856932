"""Measured token budgets, by the device and the model that they were measured with."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from evalguard.core.settings import Value, digest_of
from evalguard.store.atomic_files import make_private_folder, write_atomically
from evalguard.store.leases import Lease

BUDGET_FORMAT = "evalguard.token-budget/1"
# Measuring takes seconds.
PATIENCE, PAUSE = 60.0, 0.05


class BudgetStore:
    """Budgets in a folder, one small file each.

    What cannot be read is as if it were not there: it is measured again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, facts: Mapping[str, Value]) -> int | None:
        """Return the budget, in tokens, that was measured under these facts."""
        found = _read_budget(self._file(facts))
        return found[1] if found is not None and found[0] == dict(facts) else None

    def find_or_measure(self, facts: Mapping[str, Value], measure: Callable[[], int]) -> int:
        """Return the budget that is remembered; else measure and remember it.

        Of several processes one measures, and the others take what it found: their budgets would
        differ by what else the machine does, and so would the batches that their scores come from.
        """
        lock = self._turn(facts)
        try:
            budget = self.get(facts)
            if budget is None:
                budget = measure()
                # A folder that cannot be written costs the next run a measurement; the score
                # cache says so.
                with contextlib.suppress(OSError):
                    self.put(facts, budget)
            return budget
        finally:
            if lock is not None:
                lock.release()

    def _turn(self, facts: Mapping[str, Value]) -> Lease | None:
        """Wait until nobody else measures; None where no lease can be had, or somebody hangs."""
        path, until = self._file(facts).with_suffix(".lock"), time.monotonic() + PATIENCE
        try:
            make_private_folder(self._folder)
            while self.get(facts) is None and time.monotonic() < until:
                lock = Lease.tried(path)
                if lock is not None:
                    return lock
                time.sleep(PAUSE)
        except OSError:
            pass
        return None

    def put(self, facts: Mapping[str, Value], budget: int) -> None:
        """Remember a budget.

        Raises:
            OSError: the disk refuses.
        """
        make_private_folder(self._folder)
        content = {"format": BUDGET_FORMAT, "of": dict(facts), "token_budget": budget}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self._file(facts), text.encode())

    def _file(self, facts: Mapping[str, Value]) -> Path:
        return self._folder / f"{digest_of(dict(facts))}.json"


def _read_budget(path: Path) -> tuple[dict[str, Value], int] | None:
    """What a budget was measured of, and the budget; None where that is not what is there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        facts, budget = found["of"], found["token_budget"]
        known = found["format"] == BUDGET_FORMAT and isinstance(facts, dict)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    valid = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
    return (facts, budget) if known and valid else None
