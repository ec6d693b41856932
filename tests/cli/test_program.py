"""An installation that cannot even be imported gives no verdict either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import evalguard

CHECKOUT = Path(evalguard.__file__).parent.parent


def program(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "evalguard", *words],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("how", ["raise ImportError('broken')", "import sys; sys.exit(1)", "1 / 0"])
@pytest.mark.parametrize(("words", "code"), [((), 3), (("--git_bisect",), 125)])
def test_a_broken_installation_is_no_regression(
    tmp_path: Path, how: str, words: tuple[str, ...], code: int
) -> None:
    (tmp_path / "click.py").write_text(how)
    ran = program(tmp_path, "compare", *words)
    assert ran.returncode == code
    assert "error: evalguard cannot be loaded" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("words", [("report", "x"), ("history", "list"), ("cache", "ls", "--json")])
def test_ctrl_c_while_it_is_loaded_ends_as_anywhere_else(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    ran = program(tmp_path, *words)
    told = "stopped: interrupted\nhint: the same command starts again\n"
    assert (ran.returncode, ran.stderr) == (130, told)
    if "--json" in words:
        assert json.loads(ran.stdout)["exit_code"] == 130
    else:
        assert ran.stdout == ""


def test_a_broken_installation_gives_a_document_where_one_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("1 / 0")
    document = json.loads(program(tmp_path, "compare", "--json").stdout)
    assert document["schema"] == "evalguard.error/1"
    assert "ZeroDivisionError" in document["error"]["message"]


def test_the_script_of_the_package_is_this_program() -> None:
    declared = (CHECKOUT / "pyproject.toml").read_text()
    assert 'evalguard = "evalguard.__main__:run"' in declared


def run_with_an_end(expression: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which says its version, and evaluate an expression when it ends."""
    code = (
        "import atexit, gc, logging, runpy, sys\n"
        f"atexit.register(lambda: {expression})\n"
        "sys.argv = ['evalguard', '--version']\n"
        "runpy.run_module('evalguard', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


def test_what_is_left_at_the_end_is_not_searched_for_garbage() -> None:
    ran = run_with_an_end("print(gc.get_freeze_count() > 10_000, file=sys.stderr)")
    assert (ran.returncode, ran.stderr.strip()) == (0, "True")


def test_what_a_library_warns_of_at_every_call_is_shown_once() -> None:
    ran = run_with_an_end(
        "[logging.getLogger('layers').warning('cast from %s', dtype)"
        " for dtype in ('float32', 'float32', 'bfloat16')]"
    )
    assert ran.stderr.splitlines() == ["cast from float32", "cast from bfloat16"]
