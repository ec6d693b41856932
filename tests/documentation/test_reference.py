"""The pages of docs/reference are those that the code makes today, and nothing is missing there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import click
import pytest

from documentation.markdown_text import cell, code
from documentation.reference import CONTRACTS, FOLDER, reference_pages
from evalguard.cli.main import cli
from evalguard.config.guard_writing import build_guard_schema

PAGES = reference_pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_what_the_code_makes_today(name: str) -> None:
    page = (FOLDER / name).read_text("utf-8")
    assert page == PAGES[name], "make reference (python -m documentation.reference) writes it anew"


def test_no_other_page_lies_among_them() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(PAGES)


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}".strip(), command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}".strip())


def test_every_command_is_there_with_every_option_and_what_it_does() -> None:
    page = PAGES["commands.md"]
    for name, command in commands(cli):
        assert f"## evalguard {name}\n" in page
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                if "--help-all" in parameter.opts:
                    continue
                assert all(option in page for option in parameter.opts), (name, parameter.name)
                assert cell(parameter.help or "") in page, (name, parameter.name)


def test_every_key_of_a_guard_file_is_there() -> None:
    made = build_guard_schema()
    for entry in (made, *made["$defs"].values()):
        for key in entry.get("properties", {}):
            assert f"| {code(key)}" in PAGES["guard-file.md"], key


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_key_of_a_document_is_there(name: str) -> None:
    from evalguard.comparison.listing import read_named_schema

    def keys(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            yield from (
                part.get("properties", {}) if isinstance(part.get("properties"), dict) else ()
            )
            for value in part.values():
                yield from keys(value)
        elif isinstance(part, list):
            for value in part:
                yield from keys(value)

    rows = re.findall(r"^\| <code>([^<]+)</code>", PAGES["json.md"], re.MULTILINE)
    shown = {html.unescape(row).rpartition(".")[2] for row in rows}
    assert set(keys(read_named_schema(name))) <= shown


def test_every_exit_code_is_on_its_page() -> None:
    from evalguard import errors
    from evalguard.core.exit_code import EXIT_GIT_BISECT_SKIP, EXIT_INTERRUPTED, EXIT_TERMINATED

    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    codes |= {EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_GIT_BISECT_SKIP}
    shown = re.findall(r"^\| (\d+) \|", PAGES["exit-codes.md"], re.MULTILINE)
    assert {int(number) for number in shown} == codes
