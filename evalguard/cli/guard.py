"""``evalguard init``, ``schema``, ``models`` and ``tasks``: what there is to compare."""

from __future__ import annotations

import json
from pathlib import Path

import click

_PATH = click.Path(path_type=Path)
_CONFIG = click.option(
    "--config", type=_PATH, help="Guard file. Default: ./evalguard.yaml, ./configs/*."
)


@click.command("init")
@click.argument("file", type=_PATH, default=Path("evalguard.yaml"))
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init_command(file: Path, force: bool) -> None:
    """Write a commented guard file to start from (default: evalguard.yaml)."""
    from evalguard.pipeline.listing import write_template

    write_template(file, force=force)
    click.echo(f"wrote {file}", err=True)
    click.echo(f"next: edit it, then: evalguard models --config {file}", err=True)


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of guard files."""
    from evalguard.pipeline.listing import guard_schema

    click.echo(json.dumps(guard_schema(), indent=2))


@click.command("models")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--debug", is_flag=True, help="Tracebacks of errors.")
def models_command(config: Path | None, as_json: bool, debug: bool) -> None:  # noqa: ARG001 - main() reads --debug
    """List the models, settings and pairs of the guard file."""
    from evalguard.pipeline.listing import describe_models, render_models

    models = describe_models(config)
    click.echo(json.dumps(models, indent=2) if as_json else render_models(models))


@click.command("tasks")
@click.argument("pattern", default="*")
@_CONFIG
@click.option("--include-path", type=_PATH, multiple=True, help="Folder with further task files.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--debug", is_flag=True, help="Tracebacks of errors.")
def tasks_command(
    pattern: str,
    config: Path | None,
    include_path: tuple[Path, ...],
    as_json: bool,
    debug: bool,  # noqa: ARG001 - main() reads --debug
) -> None:
    """List lm-eval tasks whose name matches PATTERN (shell wildcards)."""
    from evalguard.pipeline.listing import list_tasks

    names = list_tasks(pattern, config=config, include_path=include_path)
    click.echo(json.dumps(names, indent=2) if as_json else "\n".join(names))
