"""Comparisons: what a test does with the ``evalguard`` fixture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import evalguard
from evalguard.errors import EXIT_PASSED, EvalguardError, Interrupted
from evalguard.pytest_plugin import PROPERTY
from evalguard.redaction import redacted_text

if TYPE_CHECKING:
    from evalguard.pipeline.result import CompareResult

# A test neither adds to a history nor sends a run anywhere unless it asks for that.
_OF_TESTS: Mapping[str, Any] = {"quiet": True, "use_history": False, "track": ("none",)}


class Comparisons:
    """Comparisons of one test. The command line's options win over those of the test.

    Attributes:
        result: of the test's marker; None where it has none.
    """

    def __init__(self, *, node: pytest.Item, chosen: Mapping[str, Any], folder: Path) -> None:
        """``chosen``: options of the command line; ``folder``: where run folders go else."""
        self.result: CompareResult | None = None
        self._node, self._chosen, self._folder = node, chosen, folder

    def compare(self, base: str | Path, candidate: str | Path, **options: Any) -> CompareResult:
        """Compare as :func:`evalguard.compare` does; the test decides what that means.

        Raises:
            EvalguardError: nothing is known (see :func:`evalguard.compare`).
        """
        own = {"output_path": self._folder, **_OF_TESTS, **options, **self._chosen}
        if "history" in options:
            own["use_history"] = options.get("use_history", True)
        try:
            result = evalguard.compare(base, candidate, **own)
        except Interrupted as stopped:
            raise KeyboardInterrupt from stopped
        gate = result.gate
        told = f"{_name(candidate)} against {_name(base)}: {gate.state.upper()}, {gate.reason}"
        self._node.user_properties.append((PROPERTY, _line(redacted_text(told))))
        return result

    def check(self, base: str | Path, candidate: str | Path, **options: Any) -> CompareResult:
        """Compare, and fail the test if the gate does not pass, or if nothing is known."""
        try:
            result = self.compare(base, candidate, **options)
        except EvalguardError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            told = _shown(f"no verdict: {error}{hint}")
        else:
            return self._passed(result)
        # Not in the handler: pytest would show the error itself beside this, as it came.
        pytest.fail(told, pytrace=False)

    def _passed(self, result: CompareResult) -> CompareResult:
        if result.exit_code != EXIT_PASSED:
            pytest.fail(result.render(width=80, color=False), pytrace=False)
        return result


def _name(side: str | Path) -> str:
    return str(side).rstrip("/").rsplit("/", 1)[-1]


def _shown(text: str) -> str:
    """Lines that go to a terminal and to pytest's JUnit file."""
    return "\n".join(map(_line, redacted_text(text).split("\n")))


def _line(text: str) -> str:
    """One line without a character that acts on a terminal."""
    return "".join(one if one.isprintable() else " " for one in text)
