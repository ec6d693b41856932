"""What click collected, as fields of CompareOptions; and what was given without effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from evalguard.errors import UsageError

if TYPE_CHECKING:
    pass


from evalguard.cli.value_types import NO_HISTORY


def read_compare_options(given: dict[str, Any]) -> dict[str, Any]:
    """Turn click's values into fields of CompareOptions."""
    from evalguard.run.options import parse_arguments

    options = dict(given)
    _check_limits_once(options.get("gate_limits", ()))
    for name in ("base_model_args", "cand_model_args", "gen_kwargs"):
        if name in options:
            options[name] = parse_arguments(options[name], where=f"--{name.replace('_', '-')}")
    for name in ("base_set", "cand_set", "gate_limits"):
        if name in options:
            options[name] = dict(options[name])
    if "tasks" in options:
        options["tasks"] = _read_tasks(options["tasks"])
    if "allow_differing" in options:
        options["allow_differing"] = frozenset(options["allow_differing"])
    options["use_cache"] = not options.pop("no_cache", False)
    if options.get("history") == NO_HISTORY:
        options |= {"history": None, "use_history": False}
    return options


def _read_tasks(typed: str) -> tuple[str, ...]:
    """The names between commas; what names none would count as all that the guard file names."""
    names = tuple(name for name in (part.strip() for part in typed.split(",")) if name)
    if typed and not names:
        raise UsageError(f"--tasks '{typed}' names no task", hint="--tasks A,B")
    return names


def _check_limits_once(limits: Iterable[tuple[str, Any]]) -> None:
    """Refuse two limits on one figure: the gate would silently hold to one of them."""
    found: dict[str, Any] = {}
    for name, value in limits:
        if found.setdefault(name, value) != value:
            raise UsageError(
                f"--gate-metric {name} is given twice: {found[name]} and {value}",
                hint="one limit a figure",
            )


def list_ignored_options(context: click.Context, counting: Collection[str]) -> list[str]:
    """Return the options that were typed and that count for nothing, as they are written.

    Args:
        counting: names of the parameters that count.
    """
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in counting
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        and parameter.expose_value
    ]
