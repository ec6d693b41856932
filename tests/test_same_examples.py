"""Where a change is tested, Hypothesis's examples depend on their test alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Draws examples before and after a module of ours is loaded that is full of constants.
_SCRIPT = """
import conftest
from hypothesis import given, settings, strategies as st

def drawn():
    seen = []

    @settings(max_examples=200, database=None)
    @given(st.lists(st.integers() | st.floats() | st.text()))
    def example(values):
        seen.append(repr(values))

    example()
    return seen

first = drawn()
import constants_of_ours
print(drawn() == first)
"""


def test_examples_do_not_depend_on_what_was_loaded_before(tmp_path: Path) -> None:
    constants = [f'"name {number}", {1000003 * number}, {number / 7}' for number in range(1, 25)]
    (tmp_path / "constants_of_ours.py").write_text(f"VALUES = [{', '.join(constants)}]\n")
    path = os.pathsep.join(map(str, (Path(__file__).parent, tmp_path, *sys.path)))
    environment = {**os.environ, "EVALGUARD_SAME_EXAMPLES": "1", "PYTHONPATH": path}
    said = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=environment, cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout == "True\n"
