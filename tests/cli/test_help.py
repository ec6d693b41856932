"""Help: a screen of what people need, all options in groups, a text for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from evalguard.cli.click_options import Option, group_options
from evalguard.cli.main import cli

WIDTH = 80
SCREEN = 40


def commands(group: click.Group = cli, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*above, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


COMMANDS = list(commands())
LONG = [words for words in COMMANDS if len(command_of(words).params) > 16]


def options(words: tuple[str, ...]) -> list[click.Option]:
    return [p for p in command_of(words).params if isinstance(p, click.Option)]


def dashes(name: str) -> int:
    return len(name) - len(name.lstrip("-"))


def listed(text: str) -> list[str]:
    """The options that a help text lists: the first name of each."""
    return re.findall(r"^  (-[\w-]+)", text, re.MULTILINE)


def test_the_commands_with_many_options_are_the_ones_with_two_helps() -> None:
    assert {words[0] for words in LONG} == {
        "compare", "bisect", "demo", "plan", "floor", "nightly", "trace", "dump"
    }  # fmt: skip


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_fits_a_screen(run: Any, words: tuple[str, ...]) -> None:
    lines = run(*words, "--help").out.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_help_lists_about_a_dozen_options_and_names_where_the_others_are(
    run: Any, words: tuple[str, ...]
) -> None:
    shown = listed(run(*words, "--help").out)
    assert 8 <= len(shown) <= 17
    assert shown[-2:] == ["--help-all", "-h"]


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_help_all_lists_every_option_once_under_a_heading(run: Any, words: tuple[str, ...]) -> None:
    text = run(*words, "--help-all").out
    assert max(map(len, text.splitlines())) <= WIDTH
    assert sorted(listed(text)) == sorted(
        [*(min(o.opts, key=dashes) for o in options(words)), "-h"]
    )
    headings = re.findall(r"^(\w[\w ]+):$", text, re.MULTILINE)
    assert headings == list(group_options(command_of(words).params))
    assert f"all {len(options(words)) - 1} options" in text


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_every_option_of_a_long_command_names_its_group(words: tuple[str, ...]) -> None:
    assert [o.name for o in options(words) if not isinstance(o, Option)] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_has_a_help_text(words: tuple[str, ...]) -> None:
    for option in options(words):
        assert option.help, option.name
        assert option.help[0].isupper() or option.help.startswith(("lm-eval", "cpu")), option.help
        assert option.help.endswith("."), option.help


def test_an_option_means_the_same_group_in_every_command() -> None:
    groups: dict[str, set[str]] = {}
    for words in LONG:
        for option in options(words):
            assert isinstance(option, Option)
            groups.setdefault(option.opts[0], set()).add(option.group)
    assert {name: found for name, found in groups.items() if len(found) > 1} == {}


def test_the_first_screen_lists_every_command_once(run: Any) -> None:
    text = run("--help").out
    for name in cli.commands:
        assert len(re.findall(rf"^  {name}\b +\S", text, re.MULTILINE)) == 1, name
