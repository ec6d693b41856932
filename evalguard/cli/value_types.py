"""Values typed on the command line, as click reads and checks them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from evalguard import tools
from evalguard.core.amounts import parse_age
from evalguard.core.settings import Value

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
    _Choice = click.Choice[str]
else:  # click before 8.4 has no generic ParamType
    _Type = click.ParamType
    _Choice = click.Choice


class Pairs(_Type):
    """``NAME=VALUE``: VALUE is JSON where it reads as JSON, else text.

    With ``alone`` a NAME without a value is one, too: its value is None.
    """

    name = "NAME=VALUE"

    def __init__(self, example: str = "attn_scale=reference", *, alone: bool = False) -> None:
        self._example, self._alone = example, alone
        self.name = "NAME[=VALUE]" if alone else self.name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Value]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if self._alone and name and not equals:
            return name, None
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


class FiniteRange(click.FloatRange):
    """A number of a range; NaN lies in none, though no comparison says so, nor does infinity."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
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
        from evalguard.core.verdict import Margin  # numpy, which --help does without

        try:
            margin = Margin.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if margin.value == 0.0:
            self.fail("a margin must be above 0", param, ctx)
        return margin.value if margin.unit == "sigma" else margin.text


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


class ToolChoice(_Choice):
    """One of the names that a tool has; they are loaded when they are needed."""

    def __init__(self, names: str) -> None:
        self._names = names
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """What ``tools.py`` gives under the name of a table."""
        return tuple(tools.fetch(self._names))
