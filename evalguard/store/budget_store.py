"""Measured token budgets, by the device and the model that they were measured with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from evalguard.settings import Value, digest_of
from evalguard.store.disk import make_private_folder, write_atomically

FORMAT = "evalguard.token-budget/1"


class BudgetStore:
    """Budgets in a folder, one small file each.

    What cannot be read is as if it were not there: it is measured again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, facts: Mapping[str, Value]) -> int | None:
        """Return the budget, in tokens, that was measured under these facts."""
        try:
            found = json.loads(self._file(facts).read_text(encoding="utf-8"))
            known = found["format"] == FORMAT and found["of"] == dict(facts)
            budget = found["token_budget"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        valid = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
        return budget if known and valid else None

    def put(self, facts: Mapping[str, Value], budget: int) -> None:
        """Remember a budget.

        Raises:
            OSError: the disk refuses.
        """
        make_private_folder(self._folder)
        content = {"format": FORMAT, "of": dict(facts), "token_budget": budget}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self._file(facts), text.encode())

    def _file(self, facts: Mapping[str, Value]) -> Path:
        return self._folder / f"{digest_of(dict(facts))}.json"
