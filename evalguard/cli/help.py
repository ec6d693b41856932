"""Help in two lengths: the options that people need, and all of them in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

HELP_OPTIONS = ["-h", "--help"]
_OUTPUT = "Output"
_NAMES_WIDTH = 25  # cells for names of options; longer ones get a line of their own
_SHOWS_ALL = "evalguard.help_all"


class Option(click.Option):
    """An option that names its group, under which ``--help-all`` and the documentation list it."""

    def __init__(self, *args: Any, group: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Leave out "[x>=0]": the message about a value out of range says it."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def options_in(group: str) -> Callable[..., Callable[[Decorated], Decorated]]:
    """Return ``click.option`` for the options of a group."""
    return partial(click.option, cls=Option, group=group)


model_option = options_in("Models")
task_option = options_in("Tasks and prompts")
scoring_option = options_in("Scoring")
speed_option = options_in("Speed and memory")
cache_option = options_in("Cache")
distribution_option = options_in("Distributions")
gate_option = options_in("Gate and statistics")
bisect_option = options_in("Bisection")
floor_option = options_in("Noise floor")
record_option = options_in("History and tracking")
output_option = options_in(_OUTPUT)


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that gives a command several options, shown in this order."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class Command(click.Command):
    """A command whose ``--help`` shows the options of ``first``, and whose ``--help-all`` all.

    Args:
        first: names of the parameters that most people need, in the order of ``--help``. Without
            them ``--help`` shows all options, in groups where there are several.
    """

    def __init__(self, *args: Any, first: Sequence[str] = (), **attributes: Any) -> None:
        # click keeps the help option of a command's first run, maybe without the program's names.
        attributes.setdefault("context_settings", {}).setdefault("help_option_names", HELP_OPTIONS)
        super().__init__(*args, **attributes)
        self.first = tuple(first)
        unknown = set(first) - {parameter.name for parameter in self.params}
        if unknown:
            raise ValueError(f"{self.name} has no parameter {', '.join(sorted(unknown))}")
        if first:
            count = sum(isinstance(parameter, click.Option) for parameter in self.params)
            self.params.append(
                Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_show_all,
                    help=f"Show all {count} options in groups, and exit.",
                    group=_OUTPUT,
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of ``first``, or all in groups."""
        for heading, parameters in self._sections(ctx):
            with formatter.section(heading):
                formatter.write_dl(_records(parameters, ctx), col_max=_NAMES_WIDTH)

    def _sections(self, ctx: click.Context) -> Iterable[tuple[str, list[click.Parameter]]]:
        if self.first and not ctx.meta.get(_SHOWS_ALL):
            by_name = {parameter.name: parameter for parameter in self.params}
            shown = [by_name[name] for name in (*self.first, "help_all")]
            return [("Options", [*shown, *filter(None, [self.get_help_option(ctx)])])]
        groups = grouped(self.get_params(ctx))
        return groups.items() if len(groups) > 1 else [("Options", next(iter(groups.values())))]


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def grouped(parameters: Iterable[click.Parameter]) -> dict[str, list[click.Parameter]]:
    """Return options by the name of their group, ``Output`` last; without arguments."""
    groups: dict[str, list[click.Parameter]] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            groups.setdefault(getattr(parameter, "group", _OUTPUT), []).append(parameter)
    if _OUTPUT in groups:
        groups[_OUTPUT] = groups.pop(_OUTPUT)
    return groups


def _records(parameters: Iterable[click.Parameter], ctx: click.Context) -> list[tuple[str, str]]:
    return [record for record in (p.get_help_record(ctx) for p in parameters) if record]


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
