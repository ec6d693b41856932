"""``evalguard init``, ``check``, ``schema``, ``models`` and ``tasks``: what there is to compare."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import click

from evalguard.cli.click_options import PATH
from evalguard.cli.option_groups import CONFIG, DEBUG
from evalguard.cli.output import CommandResult, Job

_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)


@click.command("init")
@click.argument("file", type=PATH, default=Path("evalguard.yaml"))
@click.option("--force", is_flag=True, help="Overwrite the file.")
@DEBUG
def init_command(file: Path, force: bool) -> Job:
    """Write a commented guard file to start from (default: evalguard.yaml)."""
    return partial(_init, file, force)


def _init(file: Path, force: bool) -> CommandResult:
    from evalguard.config.guard_writing import write_template

    write_template(file, force=force)
    named = "" if file == Path("evalguard.yaml") else f" --config {shlex.quote(str(file))}"
    click.echo(f"wrote {file}", err=True)
    click.echo(f"next: edit it, then: evalguard models{named}", err=True)
    return CommandResult(str)


@click.command("skill")
@DEBUG
def skill_command() -> Job:
    """Print SKILL.md: how a coding agent uses evalguard, and what it must not conclude.

    evalguard skill > .claude/skills/evalguard/SKILL.md puts it where agents look.
    """
    return _skill


def _skill() -> CommandResult:
    from evalguard.comparison.listing import read_skill

    return CommandResult(read_skill)


@click.command("check")
@click.argument("files", type=PATH, nargs=-1)
@DEBUG
def check_command(files: tuple[Path, ...]) -> Job:
    """Check guard files, and name every problem of each: no model is loaded, no code is run.

    Local models, tasks and folders that are not there, model types, their arguments and values, and
    lines of JSON data that are none are problems; hub ids are not looked up. Without FILES those
    that `evalguard compare` would find are checked. The exit code is 2 if one cannot be used: a
    check before a commit.
    """
    return partial(_check, files)


def _check(files: tuple[Path, ...]) -> CommandResult:
    from evalguard.comparison.listing import check_guards

    lines = check_guards(files, note=lambda note: click.echo(f"note: {note}", err=True))
    return CommandResult(partial("\n".join, lines))


@click.command("schema")
@click.argument("name", default="guard")
@DEBUG
def schema_command(name: str) -> Job:
    """Print the JSON Schema of guard files, or of what --json prints.

    NAME is guard (the default), compare, floor, nightly, trace, tensors, ...: a name that is
    not there lists them all.
    """
    return partial(_schema, name)


def _schema(name: str) -> CommandResult:
    from evalguard.comparison.listing import read_named_schema

    return CommandResult(partial(_as_json, read_named_schema(name)))


@click.command("models")
@CONFIG
@click.option("--types", is_flag=True, help="List model types instead: which can run here.")
@_JSON
@DEBUG
def models_command(config: Path | None, types: bool, as_json: bool) -> Job:
    """List the models, settings and pairs of the guard file, or the types that a model can have."""
    return partial(_models, config, types, as_json)


def _models(config: Path | None, types: bool, as_json: bool) -> CommandResult:
    from evalguard.comparison.listing import (
        describe_models,
        describe_types,
        render_models,
        render_types,
    )

    if types:
        return CommandResult(partial(_as_json if as_json else render_types, describe_types()))
    return CommandResult(partial(_as_json if as_json else render_models, describe_models(config)))


@click.command("tasks")
@click.argument("pattern", default="*")
@CONFIG
@click.option(
    "--include-path",
    type=PATH,
    multiple=True,
    metavar="FOLDER",
    help="Folder with more task files. Repeatable.",
)
@_JSON
@DEBUG
def tasks_command(
    pattern: str, config: Path | None, include_path: tuple[Path, ...], as_json: bool
) -> Job:
    """List lm-eval tasks whose name matches PATTERN (shell wildcards)."""
    return partial(_tasks, pattern, config, include_path, as_json)


def _tasks(
    pattern: str, config: Path | None, include_path: tuple[Path, ...], as_json: bool
) -> CommandResult:
    from evalguard.comparison.listing import list_tasks, render_tasks

    listing = list_tasks(pattern, config=config, include_path=include_path)
    for note in listing.notes:
        click.echo(f"note: {note}", err=True)
    return CommandResult(partial(_as_json if as_json else render_tasks, listing.names))


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=2)
