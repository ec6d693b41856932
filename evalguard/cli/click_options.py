"""How options are declared: groups of them, and two lengths of help."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from evalguard.errors import UsageError

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

    from evalguard.config.declared_options import DeclaredOption


def read_compare_options(given: dict[str, Any]) -> dict[str, Any]:
    """Turn click's values into fields of CompareOptions; what is none of these stays."""
    from evalguard.config.declared_options import declared_options
    from evalguard.config.options import CompareOptions

    declared = declared_options(CompareOptions)
    return {
        name: _read_typed(declared[name], value) if name in declared else value
        for name, value in given.items()
    }


def _read_typed(declared: DeclaredOption, value: Any) -> Any:
    from evalguard.config.options import parse_arguments

    kind = declared.option.kind
    if kind == "arguments":
        return parse_arguments(value, where=declared.flag)
    if kind == "gate_metrics":
        _check_limits_once(value)
    if kind in ("settings", "gate_metrics"):
        return dict(value)
    if kind == "names":
        return _read_tasks(value)
    return declared.read(value)


def _read_tasks(typed: str) -> tuple[str, ...]:
    """The names between commas; what names none would count as all that the guard file names."""
    names = tuple(name for name in (part.strip() for part in typed.split(",")) if name)
    if typed and not names:
        raise UsageError(f"--tasks '{typed}' names no task", hint="--tasks A,B")
    return names


def _check_limits_once(limits: Iterable[tuple[str, Any]]) -> None:
    """Refuse two limits on one figure: the gate would silently hold to one of them."""
    values: dict[str, Any] = {}
    for name, value in limits:
        if values.setdefault(name, value) != value:
            raise UsageError(
                f"--gate-metric {name} is given twice: {values[name]} and {value}",
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


_ELSEWHERE: Mapping[str, str] = {
    "--aa": "`evalguard floor --base MODEL`",
    "--baseline": "`--base RUN`, or `--base RUN:NAME` for another model in there",
    "--check-batch-size": "`evalguard floor --base MODEL --vary batch-size`",
    "--no-history": "`--history none`",
    "--reference": "`--save-reference FILE` to write it, `--base FILE` to read it",
    "--vary": "`evalguard floor --base MODEL --vary WHAT`",
}
_CHECKED_WHEN_READ = (
    "what is kept is checked when it is read, set aside where it is damaged, and made anew",
    "evalguard cache ls counts what was set aside",
)
MOVED_COMMANDS: Mapping[str, tuple[str, str]] = {
    "cache check": _CHECKED_WHEN_READ,
    "cache verify": _CHECKED_WHEN_READ,
    "cache prune": (
        "`evalguard cache clear` removes all that is kept",
        "a size limit removes what was least recently used: `run: {cache_max_size: 20GB}` of the "
        "guard file, or EVALGUARD_CACHE_MAX_SIZE=20GB",
    ),
}
"""Of each command that is gone what takes its place, and a hint."""


def explain_move(option: str) -> UsageError | None:
    """What to type, or to write, in place of an option; None of one that never was."""
    from evalguard.config.declared_options import declared_options
    from evalguard.config.options import CompareOptions

    option = option.replace("_", "-")
    if option in _ELSEWHERE:
        return UsageError(f"{option} is now {_ELSEWHERE[option]}")
    for declared in declared_options(CompareOptions).values():
        key = f"--{declared.name.replace('_', '-')}"
        off = f"--no-{key[2:]}" if declared.type is bool else ""
        if declared.option.example and option in (key, off):
            return _is_a_key(option, declared, off=option == off)
    return None


def _is_a_key(option: str, declared: DeclaredOption, *, off: bool) -> UsageError:
    example = "false" if off else declared.option.example
    written = f"{declared.option.section}: {{{declared.name}: {example}}}"
    command = ""
    if declared.option.help:  # of bisect
        words = declared.flag_when_off if off else declared.flag
        value = "" if declared.type is bool else f" {example}"
        command = f", or `evalguard bisect {words}{value}`"
    return UsageError(
        f"{option} is now `{written}` of the guard file{command}",
        hint="a guard file may hold that alone; --config FILE names it",
    )


def explain_moved_command(words: str) -> UsageError | None:
    """What takes the place of a command such as "cache verify"; None of one that never was."""
    if words not in MOVED_COMMANDS:
        return None
    instead, hint = MOVED_COMMANDS[words]
    return UsageError(f"evalguard {words} is gone: {instead}", hint=hint)


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
HELP_OPTIONS = ["-h", "--help"]
PATH = click.Path(path_type=Path)
_OUTPUT = "Output"
_NAMES_WIDTH = 25  # cells for names of options; longer ones get a line of their own
_SHOWS_ALL = "evalguard.help_all"
_MAY_BE_EMPTY = ("name",)  # of a comment: jobs without a name of their own


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


def option_factory(group: str) -> Callable[..., Callable[[Decorated], Decorated]]:
    """Return ``click.option`` for the options of a group."""
    return partial(click.option, cls=Option, group=group)


model_option = option_factory("Models")
task_option = option_factory("Tasks and prompts")
scoring_option = option_factory("Scoring")
speed_option = option_factory("Speed and memory")
cache_option = option_factory("Cache")
distribution_option = option_factory("Distributions")
gate_option = option_factory("Gate and statistics")
bisect_option = option_factory("Bisection")
floor_option = option_factory("Noise floor")
record_option = option_factory("History and tracking")
output_option = option_factory(_OUTPUT)


def files_option(what: str, forms: str) -> Callable[[Decorated], Decorated]:
    """``-o FILE``, repeatable: where ``what`` is written to, in the form that a suffix says."""
    return output_option(
        "-o",
        "--output",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help=f"Write the {what} to FILE: {forms}. Repeatable.",
    )


def add_options(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
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
        moves: whether some of its options have gone elsewhere.
    """

    def __init__(
        self, *args: Any, first: Sequence[str] = (), moves: bool = False, **attributes: Any
    ) -> None:
        # click keeps the help option of a command's first run, maybe without the program's names.
        attributes.setdefault("context_settings", {}).setdefault("help_option_names", HELP_OPTIONS)
        super().__init__(*args, **attributes)
        self.first = tuple(first)
        self.moves = moves
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
                    callback=_print_full_help,
                    help=f"Show all {count} options in groups, and exit.",
                    group=_OUTPUT,
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; who gives two models without their options is told these.

        Raises:
            UsageError: for that, for an option that has moved, with where it is now, and for an
                empty value, which an unset variable of a shell leaves.
        """
        words = list(args)
        try:
            remaining = super().parse_args(ctx, args)
            self._refuse_empty(ctx, words)
            return remaining
        except click.NoSuchOption as error:
            moved = explain_move(error.option_name) if self.moves else None
            if moved is None:
                raise
            raise moved from error
        except click.UsageError as error:
            named = any(word.partition("=")[0] in ("--base", "--cand") for word in words)
            bare = isinstance(error, click.MissingParameter) or type(error) is click.UsageError
            if named or not bare or all(parameter.name != "cand" for parameter in self.params):
                raise
            _, given, _ = self.make_parser(ctx).parse_args(words)
            if not given:
                raise
            base, candidate = shlex.join(given[:1]), shlex.join(given[1:2]) or "CANDIDATE"
            raise UsageError(
                "models are named by options, --base and --cand",
                hint=f"{ctx.command_path} --base {base} --cand {candidate}",
            ) from error

    def _refuse_empty(self, ctx: click.Context, words: list[str]) -> None:
        """An empty value would count as none: all tasks, no guard file, the folder one is in."""
        typed, _, _ = self.make_parser(ctx).parse_args(words)
        for parameter in self.params:
            given = typed.get(parameter.name or "")
            values = given if isinstance(given, (list, tuple)) else (given,)
            if parameter.name in _MAY_BE_EMPTY or not any(value == "" for value in values):
                continue
            option = isinstance(parameter, click.Option)
            name = parameter.opts[0] if option else parameter.human_readable_name
            raise UsageError(
                f"{name} is empty",
                hint="is a variable of the shell not set? give a value, or leave it out",
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of ``first``, or all in groups."""
        for heading, parameters in self._sections(ctx):
            with formatter.section(heading):
                formatter.write_dl(_help_rows(parameters, ctx), col_max=_NAMES_WIDTH)

    def _sections(self, ctx: click.Context) -> Iterable[tuple[str, list[click.Parameter]]]:
        if self.first and not ctx.meta.get(_SHOWS_ALL):
            by_name = {parameter.name: parameter for parameter in self.params}
            shown = [by_name[name] for name in (*self.first, "help_all")]
            return [("Options", [*shown, *filter(None, [self.get_help_option(ctx)])])]
        groups = group_options(self.get_params(ctx))
        return groups.items() if len(groups) > 1 else [("Options", next(iter(groups.values())))]


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; who types a command that is gone is told what takes its place.

        Raises:
            UsageError: for such a command.
        """
        moved = explain_moved_command(f"{ctx.info_name} {args[0]}") if args else None
        if moved is not None:
            raise moved
        return super().resolve_command(ctx, args)


def group_options(parameters: Iterable[click.Parameter]) -> dict[str, list[click.Parameter]]:
    """Return options by the name of their group, ``Output`` last; without arguments."""
    groups: dict[str, list[click.Parameter]] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            groups.setdefault(getattr(parameter, "group", _OUTPUT), []).append(parameter)
    if _OUTPUT in groups:
        groups[_OUTPUT] = groups.pop(_OUTPUT)
    return groups


def _help_rows(parameters: Iterable[click.Parameter], ctx: click.Context) -> list[tuple[str, str]]:
    return [record for record in (p.get_help_record(ctx) for p in parameters) if record]


def _print_full_help(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
