"""``evalguard cache``: what is stored of finished runs, listed and cleared out."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalguard.cli.click_options import PATH, Group, add_options
from evalguard.cli.option_groups import DEBUG, JSON
from evalguard.cli.output import CommandResult, Job, show_result
from evalguard.cli.value_types import Age
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.worker.environments import KeptEnvironment

_SHARED = (
    click.option(
        "--cache-dir",
        type=PATH,
        metavar="FOLDER",
        help="Folder of the cache. Default: in the user's cache.",
    ),
    JSON,
    DEBUG,
)


@click.group(
    "cache",
    cls=Group,
    no_args_is_help=True,
)
def cache_command() -> None:
    """Look into the cache of finished scores, builds and floors."""


@cache_command.command("ls", short_help="List what is kept.")
@add_options(*_SHARED)
def cache_ls_command(cache_dir: Path | None, as_json: bool) -> Job:
    """List what is kept, by model: kind, size, blocks, when it was last used, tasks."""
    return partial(_listed, cache_dir, as_json)


def _listed(cache_dir: Path | None, as_json: bool) -> CommandResult:
    from evalguard.comparison.cache import list_cache

    return show_result(list_cache(cache_dir), as_json=as_json)


@cache_command.command("clear", short_help="Remove what is kept.")
@click.option("--all", "measured", is_flag=True, help="Measured floors and token budgets, too.")
@add_options(*_SHARED)
def cache_clear_command(cache_dir: Path | None, as_json: bool, measured: bool) -> Job:
    """Remove what is kept; what a run is using stays. The next run makes it anew."""
    return partial(_cleared, cache_dir, as_json, measured)


def _cleared(cache_dir: Path | None, as_json: bool, measured: bool) -> CommandResult:
    from evalguard.comparison.cache import clear_cache

    return show_result(clear_cache(cache_dir, measured=measured), as_json=as_json)


@click.group("envs", no_args_is_help=True)
def envs_command() -> None:
    """Look into the virtual environments that were made for models with requirements."""


@envs_command.command("ls", short_help="List them.")
@add_options(*_SHARED)
def envs_ls_command(cache_dir: Path | None, as_json: bool) -> Job:
    """List environments, the most recently used first."""
    return partial(_environments, cache_dir, as_json)


def _environments(cache_dir: Path | None, as_json: bool) -> CommandResult:
    from evalguard.comparison.cache import find_environments

    return _environments_result(find_environments(cache_dir), as_json)


@envs_command.command("rm", short_help="Remove some.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--older-than", type=Age(), metavar="AGE", help="What was not used for this time.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@add_options(*_SHARED)
def envs_rm_command(
    names: tuple[str, ...],
    older_than: float | None,
    everything: bool,
    cache_dir: Path | None,
    as_json: bool,
) -> Job:
    """Remove environments by the beginning of their names, or by age; they can be made again."""
    if not (names or everything or older_than is not None):
        raise UsageError(
            "nothing is named", hint="give NAME, --older-than AGE or --all; evalguard envs ls lists"
        )
    return partial(_removed, names, older_than, cache_dir, as_json)


def _removed(
    names: tuple[str, ...], older_than: float | None, cache_dir: Path | None, as_json: bool
) -> CommandResult:
    from evalguard.comparison.cache import drop_environments

    return _environments_result(drop_environments(cache_dir, names, older_than=older_than), as_json)


def _environments_result(found: list[KeptEnvironment], as_json: bool) -> CommandResult:
    from evalguard.comparison.cache import render_environments

    if as_json:
        return CommandResult(
            lambda: json.dumps([asdict(environment) for environment in found], indent=2)
        )
    return CommandResult(partial(render_environments, found))
