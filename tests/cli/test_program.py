"""An installation that cannot even be imported gives no verdict either."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import evalguard

CHECKOUT = Path(evalguard.__file__).parent.parent


@pytest.mark.parametrize("how", ["raise ImportError('broken')", "import sys; sys.exit(1)", "1 / 0"])
@pytest.mark.parametrize(("words", "code"), [((), 3), (("--git_bisect",), 125)])
def test_a_broken_installation_is_no_regression(
    tmp_path: Path, how: str, words: tuple[str, ...], code: int
) -> None:
    (tmp_path / "click.py").write_text(how)
    ran = subprocess.run(
        [sys.executable, "-m", "evalguard", "compare", *words],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code
    assert "error: evalguard cannot be loaded" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_script_of_the_package_is_this_program() -> None:
    declared = (CHECKOUT / "pyproject.toml").read_text()
    assert 'evalguard = "evalguard.__main__:run"' in declared


def test_what_is_left_at_the_end_is_not_searched_for_garbage() -> None:
    program = (
        "import atexit, gc, runpy, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000, file=sys.stderr))\n"
        "sys.argv = ['evalguard', '--version']\n"
        "runpy.run_module('evalguard', run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.strip()) == (0, "True")
