"""What ends a command is said in words, whatever it was."""

from __future__ import annotations

import pytest

from evalguard.cli.error_output import FailureStyle, as_known_error, report_error
from evalguard.errors import EvalguardError

STYLE = FailureStyle(as_json=False, debug=False, git_bisect=False)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory ran out"),
        (ImportError("libx.so: failed to map segment"), "a library cannot be loaded: libx.so"),
        (ModuleNotFoundError("No module named 'peft'"), "a library cannot be loaded: No module"),
        (RecursionError("maximum recursion depth exceeded"), "internal error: RecursionError"),
    ],
)
def test_what_libraries_raise_is_exit_3_in_words(error: Exception, said: str) -> None:
    known = as_known_error(error)
    assert known.exit_code == 3
    assert str(known).startswith(said)
    assert known.hint


def test_a_name_of_many_thousand_characters_does_not_flood_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_error(EvalguardError("no model '" + "x" * 400_000 + "' here\nsecond line"), STYLE)
    err = capsys.readouterr().err
    assert len(err) < 3000
    assert err.startswith("error: no model 'xxx")
    assert "xxx' here\nsecond line\n" in err


def test_no_character_that_acts_on_a_terminal_reaches_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_error(EvalguardError("a\x1b[31mb\u202ec\x07d\x9be\r", hint="\x1b]0;title\x07"), STYLE)
    assert capsys.readouterr().err == "error: a[31mbcde\nhint: ]0;title\n"
