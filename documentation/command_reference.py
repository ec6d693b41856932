"""Every command with its options, from the texts that ``--help`` shows."""

from __future__ import annotations

from collections.abc import Iterator

import click

from documentation.markdown_text import cell, code
from evalguard.cli.click_options import group_options

_HEAD = """# Commands and options

Made from what `--help` and `--help-all` show. An option that several commands have stands once,
[below](#options-of-several-commands)."""
_HELP = ("--help-all", "--help")

Row = tuple[str, str]


def command_reference(group: click.Group) -> str:
    """Return the Markdown page: every command, then the options that several of them share."""
    with click.Context(group, info_name="evalguard", **group.context_settings) as above:
        contexts = [
            click.Context(command, info_name=name, parent=outer)
            for name, command, outer in _commands(group, above)
        ]
        users: dict[Row, list[str]] = {}
        headings: dict[Row, str] = {}
        for context in contexts:
            for heading, row in _options(context):
                users.setdefault(row, []).append(_name(context))
                headings.setdefault(row, heading)
        parts = [_HEAD]
        for context in contexts:
            parts += _section(context, {row for row, names in users.items() if len(names) > 1})
    parts.append("## Options of several commands")
    for title in dict.fromkeys(headings.values()):
        rows = [row for row in users if headings[row] == title and len(users[row]) > 1]
        if rows:
            lines = [
                f"| {code(names)} | {cell(text)} | {', '.join(users[names, text])} |"
                for names, text in rows
            ]
            parts.append(f"### {title}")
            parts.append("\n".join(["| option | what it does | of |", "|---|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def _commands(
    group: click.Group, above: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name, command in group.commands.items():
        yield name, command, above
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=above)
            yield from _commands(command, context)


def _name(context: click.Context) -> str:
    return context.command_path.removeprefix("evalguard ")


def _options(context: click.Context) -> Iterator[tuple[str, Row]]:
    """Each option as help shows it, with the heading of its group."""
    for heading, options in group_options(context.command.params).items():
        for option in options:
            row = option.get_help_record(context)
            if row and not set(option.opts) & set(_HELP):
                yield heading, row


def _section(context: click.Context, shared: set[Row]) -> Iterator[str]:
    command = context.command
    yield f"## {context.command_path}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```"
    yield from _paragraphs(command.help or "")
    own = [
        f"| {code(row[0])} | {cell(row[1])} |" for _, row in _options(context) if row not in shared
    ]
    if own:
        yield "\n".join(["| option | what it does |", "|---|---|", *own])
    yield from _paragraphs(command.epilog or "")


def _paragraphs(text: str) -> Iterator[str]:
    """Click's paragraphs; one that begins with ``\\b`` is kept line by line."""
    for paragraph in text.replace("\f", "").split("\n\n"):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines and lines[0] == "\b":
            yield "```text\n" + "\n".join(lines[1:]) + "\n```"
        elif lines:
            yield cell(" ".join(lines))
