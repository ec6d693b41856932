"""Words of a command are those that a shell reads."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalguard.core.repeat_command import shell_words

commands = st.text(st.sampled_from("ab- =/.\t\n\r'\"\\$é\u2028")) | st.text()


@given(commands)
@example("a''b \"\" '' c")
@example('"a\\"b\\c" \\  \\\n')
def test_they_are_those_of_shlex(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError:
        with pytest.raises(ValueError, match="nothing closes"):
            shell_words(command)
    else:
        assert shell_words(command) == words


@given(st.lists(st.text()))
def test_what_was_joined_comes_apart_again(words: list[str]) -> None:
    assert shell_words(shlex.join(words)) == words


def test_a_word_of_a_megabyte_is_one_piece() -> None:
    name = "name with blanks/" * 60_000
    assert shell_words(f"evalguard compare --cand {shlex.quote(name)}")[-1] == name
