"""Whatever happens to stdout, and whatever is raised: never the exit code of a verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalguard.cli.error_output import FailureStyle, as_known_error
from evalguard.errors import EvaluationError, Interrupted


class _Closed:
    """A stdout whose reader went away, or whose disk is full."""

    def __init__(self, error: OSError) -> None:
        self._error = error
        self.closed = False
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        raise self._error

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        raise OSError("none")


@pytest.mark.parametrize(("candidate", "code"), [("same", 0), ("sharp", 1)])
def test_a_reader_that_went_away_changes_no_verdict(
    compare: Any, monkeypatch: pytest.MonkeyPatch, candidate: str, code: int
) -> None:
    monkeypatch.setattr(sys, "stdout", _Closed(BrokenPipeError(32, "Broken pipe")))
    ran = compare("orig", candidate)
    assert ran.code == code
    assert "error" not in ran.err


@pytest.mark.parametrize("words", [("schema",), ("models",), ("--help",), ("tasks", "evalguard_*")])
def test_a_reader_that_went_away_is_never_a_regression(
    run: Any, world: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    own = ("--config", world.guard) if words[0] in ("models", "tasks") else ()
    monkeypatch.setattr(sys, "stdout", _Closed(BrokenPipeError(32, "Broken pipe")))
    assert run(*words, *own).code in (0, 3)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_result_that_cannot_be_written_is_said(
    compare: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        ran = compare("orig", "same", *words)
    assert ran.code == 3
    assert "error: standard output cannot be written: No space left on device" in ran.err
    assert "internal error" not in ran.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (SystemExit(1), 3, "something called exit(1)"),
        (SystemExit(0), 3, "something called exit(0)"),
        (EOFError("ran out"), 3, "internal error: EOFError: ran out"),
        (ZeroDivisionError("by zero"), 3, "internal error: ZeroDivisionError: by zero"),
        (PermissionError(13, "Permission denied", "a.json"), 3, "a.json: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (EvaluationError("no", hint="yes"), 3, "no"),
    ],
)
def test_whatever_ends_a_comparison_is_no_verdict(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def compare(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("evalguard.comparison.compare.compare", compare)
    ran = run("compare", "--base", "a", "--cand", "b")
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    ran = run("compare", "--base", "a", "--cand", "b", "--debug", "--json", "--git-bisect")
    assert ran.code == ran.document["exit_code"] == (130 if code == 130 else 125)
    assert type(error).__name__ in ran.err


def test_names_of_a_stranger_cannot_act_on_the_terminal(run: Any) -> None:
    ran = run("compare", "--base", "/no/\x1b[2Jsuch", "--cand", "b")
    assert ran.code == 2
    assert "\x1b" not in ran.err


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "written").open("w", encoding="latin-1") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert run("compare", "--base", "/ĝis", "--cand", "b").code == 2
    assert "/?is" in (tmp_path / "written").read_text(encoding="latin-1")


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = Interrupted("stop")
    assert as_known_error(error) is error
    style = FailureStyle.of(["compare", "--git_bisect"])
    assert [style.code(code) for code in (0, 1, 2, 3, 4, 130, 143)] == [
        0,
        1,
        125,
        125,
        125,
        130,
        143,
    ]


COMMAND = "(show_log if '--debug' in sys.argv else hide_builds)()\n"
OF_A_NIGHT = (
    "own_process.serve_calls = lambda *_: None\n"
    "level = ['--log-level', '20'] if '--debug' in sys.argv else []\n"
    "words = ['--requests', '0', '--replies', '1', '--import-path', '[]', *level]\n"
    "own_process.serve_work({}, 'pair', words)\n"
)


@pytest.mark.parametrize("process", [COMMAND, OF_A_NIGHT], ids=["command", "of a night"])
@pytest.mark.parametrize(("words", "shown"), [((), False), (("--debug",), True)])
def test_what_a_library_says_of_its_own_build_is_shown_under_debug_alone(
    process: str, words: tuple[str, ...], shown: bool
) -> None:
    script = (
        "import logging, sys\n"
        "from evalguard.cli.main import show_log\n"
        "from evalguard.engine import own_process\n"
        "from evalguard.worker.process import hide_builds\n"
        f"{process}"
        "logging.getLogger('torchao').warning('no kernels')\n"
        "logging.getLogger('torch.utils._pytree').warning('no kernels')\n"
        "logging.getLogger('torchao').error('broken')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    assert ("no kernels" in ran.stderr) is shown
    assert "broken" in ran.stderr
