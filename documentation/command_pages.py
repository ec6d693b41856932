"""One page per command, from the texts that ``--help`` shows."""

from __future__ import annotations

from collections.abc import Iterator

import click

from documentation.markdown_text import cell, code
from evalguard.cli.parameters import group_options


def command_pages(group: click.Group) -> dict[str, str]:
    """Return the Markdown page of every command of ``group`` by the command's name."""
    with click.Context(group, info_name="evalguard", **group.context_settings) as above:
        return {name: _page(group.commands[name], above) for name in sorted(group.commands)}


def _page(command: click.Command, above: click.Context) -> str:
    with _context(command, above) as context:
        parts = list(_parts(command, context, level=1))
        if isinstance(command, click.Group):
            for name in sorted(command.commands):
                with _context(command.commands[name], context) as inner:
                    parts += _parts(command.commands[name], inner, level=2)
    return "\n\n".join(parts) + "\n"


def _context(command: click.Command, above: click.Context) -> click.Context:
    return click.Context(command, info_name=command.name, parent=above)


def _parts(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```"
    yield from _paragraphs(command.help or "")
    groups = group_options(command.params)
    for heading, options in groups.items():
        if len(groups) > 1:
            yield f"{'#' * (level + 1)} {heading}"
        rows = [row for row in (option.get_help_record(context) for option in options) if row]
        lines = [f"| {code(names)} | {cell(text)} |" for names, text in rows]
        yield "\n".join(["| option | what it does |", "|---|---|", *lines])
    if level == 1:
        yield from _paragraphs(command.epilog or "")


def _paragraphs(text: str) -> Iterator[str]:
    """Click's paragraphs; one that begins with ``\\b`` is kept line by line."""
    for paragraph in text.replace("\f", "").split("\n\n"):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines and lines[0] == "\b":
            yield "```text\n" + "\n".join(lines[1:]) + "\n```"
        elif lines:
            yield cell(" ".join(lines))
