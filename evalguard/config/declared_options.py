"""How an option is declared: once, as a field of a record; everything that offers it reads that.

A command line (``cli/option_groups.py``), ``run`` and ``gate`` of guard files
(``config/run_entry.py``, ``config/gate_entry.py``), the Python API and the command to type
(``comparison/typed_command.py``) are made from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from evalguard.core.ray_plan import RayPlan
from evalguard.core.tracked_run import NO_TRACKER
from evalguard.errors import UsageError
from evalguard.plugins import TRACKERS

# Values whose type alone does not say how they are written: each edge has a table of these.
Kind = Literal[
    "arguments", "batch_size", "chat_template", "confidence", "day", "distributions", "execution",
    "gate_metrics", "limit", "margin", "names", "settings", "size", "track",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What is declared of an option beside its name, type and default.

    Attributes:
        help: of its flag; "": it cannot be typed.
        group: heading of ``--help-all`` that the flag stands under.
        flags: how it is typed; empty: its name with dashes, with a --no- form where None is a
            third state.
        metavar: what help calls its value; None: as its type does.
        shows_default: whether help names the default.
        key: what a guard file's schema says of it; "": it is no key there.
        example: its value in a guard file, as a message shows it to whoever types the option where
            it has no flag.
        section: part of the guard file that has the key.
        harmless: why a guard file that was only found may say it; "": it needs trust, or
            ``config/trust.py`` looks at its value.
        kind: how the value is written, where its type does not say.
        at_least, above, below: bounds of a number. The Python API holds to them where ``expected``
            says so in words.
        expected: what the Python API calls for, as its refusal says.
        repeated: whether a command that makes the comparison once more needs it.
    """

    help: str = ""
    group: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    shows_default: bool = False
    key: str = ""
    example: str = ""
    section: str = "run"
    harmless: str = ""
    kind: Kind | None = None
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    expected: str = ""
    repeated: bool = True


def declare(default: Any, **said: Any) -> Any:
    """Return the field of an option, of which ``Declaration`` has what is said.

    A mapping is a new one for each record.
    """
    metadata = {"option": Declaration(**said)}
    if isinstance(default, Mapping):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredOption:
    """An option with its name, its default, and the type of what is given (without None)."""

    name: str
    type: Any
    default: Any
    option: Declaration

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is typed, as click has it: ``--sequential/--no-sequential``."""
        typed = f"--{self.name.replace('_', '-')}"
        both = self.type is bool and self.default is None
        return self.option.flags or (f"{typed}/--no-{typed[2:]}" if both else typed,)

    @property
    def flag(self) -> str:
        """The long name that is typed where the option is on, or has a value."""
        return next(flag for flag in self.flags if flag.startswith("--")).partition("/")[0]

    @property
    def flag_when_off(self) -> str:
        """What is typed where a truth value is false; "" where nothing is."""
        return self.flag if self.default is True else self.flags[0].partition("/")[2]

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it is one of, or several; () of any other."""
        inner = get_args(self.type)[0] if get_origin(self.type) is frozenset else self.type
        return get_args(inner) if get_origin(inner) is Literal else ()

    def read(self, value: Any) -> Any:
        """Return what the Python API was given as the field has it.

        A text stands for a sequence of one, or a path.

        Raises:
            UsageError: for what is neither.
        """
        origin = get_origin(self.type)
        if origin in (tuple, frozenset):
            listed = (value,) if isinstance(value, (str, Path)) else value
            if not isinstance(listed, Iterable):
                raise self._refuse(value, "a text or a list of them")
            of_paths = get_args(self.type)[0] is Path
            return origin(map(Path, listed) if of_paths else listed)
        if self.type is Path and value is not None:
            if value == "":  # as a path it is the folder one is in
                raise self._refuse(value, "a path")
            return Path(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse at once what would otherwise be noticed after hours of scoring, or never.

        Raises:
            UsageError: naming the option and the value.
        """
        expected, kind = self.option.expected, self.option.kind
        if kind == "execution" and value not in ("", "here"):
            RayPlan.parse(value)
        elif kind == "track":
            check_track(value)
        elif kind == "day" and not _is_day(value):
            raise self._refuse(value, "a day, YYYY-MM-DD")
        elif kind == "batch_size" and value != "auto" and not _is_count(value, 1):
            raise self._refuse(value, "a number of sequences or 'auto'")
        elif get_origin(self.type) is frozenset:
            for unknown in sorted(value - set(self.choices)):
                raise self._refuse(unknown, " and ".join(sorted(self.choices)))
        elif self.choices and value not in self.choices:
            raise self._refuse(value, _one_of(self.choices))
        elif get_origin(self.type) is Mapping:
            if not isinstance(value, Mapping):
                raise self._refuse(value, "a mapping, {'name': value}")
        elif self.type is int and expected:
            if not _is_count(value, self.option.at_least or 0):
                raise self._refuse(value, expected)
        elif self.type in (int, float):
            self._check_number(value)

    def _check_number(self, value: Any) -> None:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise self._refuse(value, "a number")
        if self.type is int and not isinstance(value, Integral):
            raise self._refuse(value, "a whole number")
        least, above = self.option.at_least, self.option.above
        number = float(value)
        fits = (least is None or number >= least) and (above is None or number > above)
        if self.option.expected and not (fits and number < math.inf):
            raise self._refuse(value, self.option.expected)

    def _refuse(self, value: object, expected: str) -> UsageError:
        return UsageError(f"option {self.name}: {value!r} is not {expected}")


def declared_options(record: type) -> Mapping[str, DeclaredOption]:
    """Return the options that are fields of a record, by name, in their order."""
    key: Any = record  # mypy takes the class of records that have no hash for one without a hash
    return _read_fields(key)


def declared_keys(record: type, section: str) -> Mapping[str, DeclaredOption]:
    """Return those of a record's options that are keys of a section of guard files."""
    return {
        name: declared
        for name, declared in declared_options(record).items()
        if declared.option.key and declared.option.section == section
    }


@cache
def _read_fields(record: type) -> Mapping[str, DeclaredOption]:
    types = get_type_hints(record)
    return {
        record_field.name: DeclaredOption(
            name=record_field.name,
            type=_without_none(types[record_field.name]),
            default={} if record_field.default is MISSING else record_field.default,
            option=record_field.metadata["option"],
        )
        for record_field in fields(record)
    }


def _without_none(annotation: Any) -> Any:
    """The type of what is given; of several types all as they stand, since ``kind`` tells more."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    given = [member for member in get_args(annotation) if member is not NoneType]
    return given[0] if len(given) == 1 else annotation


def _one_of(choices: Collection[str]) -> str:
    return " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"


def _is_day(value: object) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_count(value: object, least: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_track(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of trackers, each once.

    Raises:
        UsageError: one is unknown, or "none" stands beside another.
    """
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name != NO_TRACKER:
            TRACKERS.find(name)
    if NO_TRACKER in names and len(names) > 1:
        raise UsageError(
            f"track: none stands beside {', '.join(n for n in names if n != NO_TRACKER)}",
            hint="none means that nothing is sent anywhere",
        )
    return names
