"""How options are declared, typed and read.

Groups and two lengths of help, value types, and what click collected as fields of
CompareOptions.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from evalguard.cli.moved import explain_move
from evalguard.core.amounts import parse_age, parse_size
from evalguard.core.settings import Value
from evalguard.core.verdict import Margin
from evalguard.errors import UsageError

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
            UsageError: for that, and for an option that has moved, with where it is now.
        """
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            moved = explain_move(error.option_name) if self.moves else None
            if moved is None:
                raise
            raise moved from error
        except click.UsageError as error:
            named = any(word.partition("=")[0] in ("--base", "--cand") for word in words)
            bare = isinstance(error, click.MissingParameter) or type(error) is click.UsageError
            if named or not bare or all(one.name != "cand" for one in self.params):
                raise
            _, given, _ = self.make_parser(ctx).parse_args(words)
            if not given:
                raise
            base, candidate = shlex.join(given[:1]), shlex.join(given[1:2]) or "CANDIDATE"
            raise UsageError(
                "models are named by options, --base and --cand",
                hint=f"{ctx.command_path} --base {base} --cand {candidate}",
            ) from error

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


# Values typed on the command line.


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:  # click before 8.4 has no generic ParamType
    _Type = click.ParamType


PATH = click.Path(path_type=Path)
NO_HISTORY = Path("none")


class Pairs(_Type):
    """``NAME=VALUE``: VALUE is JSON where it reads as JSON, else text."""

    name = "NAME=VALUE"

    def __init__(self, example: str = "attn_scale=reference") -> None:
        self._example = example

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Value]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not (equals and name):
            self.fail(f"'{value}' is not NAME=VALUE, e.g. {self._example}", param, ctx)
        return name, parse_typed(text)


class ChatTemplate(_Type):
    """Given without a value, or with a template's name, as lm-eval has it."""

    name = ""

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002 - a ParamType's
        ctx: click.Context | None,  # noqa: ARG002
    ) -> bool | str:
        return value if isinstance(value, bool) else str(value)


class BatchSize(_Type):
    """A positive number, or "auto"."""

    name = "N|auto"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "auto":
            return "auto"
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"'{value}' is neither a positive number nor auto", param, ctx)
        return number


class LimitValue(_Type):
    """A number of documents (whole, at least 1) or a share of them (between 0 and 1)."""

    name = "N|SHARE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = 0.0
        if not (0 < number < 1 or (number >= 1 and number.is_integer())):
            self.fail(f"'{value}' is neither a number of documents nor a share below 1", param, ctx)
        return number


class MarginValue(_Type):
    """A margin in sigma (a number), points (1pp) or relative to the base (2%)."""

    name = "MARGIN"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        try:
            margin = Margin.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if margin.value == 0.0:
            self.fail("a margin must be above 0", param, ctx)
        return margin.value if margin.unit == "sigma" else margin.text


class Size(_Type):
    """Bytes, as people write them."""

    name = "SIZE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Age(_Type):
    """Seconds, as people write them."""

    name = "AGE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return value if isinstance(value, float) else parse_age(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_typed(text: str) -> Value:
    """Return ``text`` as JSON where it reads as JSON (true, 0.5, null, [1]), else as it is."""
    aliases: Mapping[str, Value] = {"True": True, "False": False, "None": None}
    if text in aliases:
        return aliases[text]
    try:
        parsed: Value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return parsed


# What click collected, as fields of CompareOptions; and what was given without effect.


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
        options["tasks"] = tuple(t for t in (p.strip() for p in options["tasks"].split(",")) if t)
    if "allow_differing" in options:
        options["allow_differing"] = frozenset(options["allow_differing"])
    options["use_cache"] = not options.pop("no_cache", False)
    if options.get("history") == NO_HISTORY:
        options |= {"history": None, "use_history": False}
    return options


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
