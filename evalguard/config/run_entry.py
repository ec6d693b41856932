"""RunEntry: how tasks are run, as a guard file says it; its keys are declared with the options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    WithJsonSchema,
    create_model,
)

from evalguard.config.declared_options import (
    DeclaredOption,
    Kind,
    declared_keys,
    declared_options,
)
from evalguard.config.entries import TEXT_SCHEMA, GuardEntry, Text
from evalguard.config.options import CompareOptions, DistributionMode, RunOptions
from evalguard.core.amounts import parse_size
from evalguard.core.tracked_run import BUILT_IN_TRACKERS, NO_TRACKER


def _limit(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or (number and (0 < value < 1 or (isinstance(value, int) and value >= 1))):
        return value
    raise ValueError("a number of documents (1 or more) or a share of them (between 0 and 1)")


def _batch_size(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is None or value == "auto" or whole:
        return value
    raise ValueError("a whole number of sequences (1 or more) or auto")


def _chat_template(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise ValueError("true, false, or the name of a chat template")


def _distributions(value: Any) -> Any:
    value = "off" if value is False else value  # YAML reads a bare off as false
    if value is None or value in _MODES:
        return value
    raise ValueError(f"one of {', '.join(_MODES)}")


_MODES = get_args(DistributionMode)


def _size(value: Any) -> Any:
    if isinstance(value, str):
        parse_size(value)
    elif value is not None and (isinstance(value, bool) or value != 0):
        raise ValueError("a size such as 20GB, with its unit")
    return value


def _execution(value: Any) -> Any:
    if value is None or (isinstance(value, str) and re.match(EXECUTION_PATTERN, value)):
        return value
    raise ValueError(
        "here, ray, ray://HOST:PORT or ray://auto; how many actors, and what each takes, are keys "
        "beside it"
    )


# The schema says in its words what the validators above say in theirs; a test compares them.
_COUNT = {"type": "integer", "minimum": 1}
_SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_NULL = {"type": "null"}
Limit = Annotated[Any, BeforeValidator(_limit), WithJsonSchema({"anyOf": [_COUNT, _SHARE, _NULL]})]
BatchSize = Annotated[
    Any, BeforeValidator(_batch_size), WithJsonSchema({"anyOf": [_COUNT, {"const": "auto"}, _NULL]})
]
_SIZE = r"^(0|[0-9]+(\.[0-9]+)?\s*([bB]|[kKmMgGtTpP][iI]?[bB]|[kKmMgGtTpP]))$"
Size = Annotated[
    Any,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"const": 0}, {"type": "string", "pattern": _SIZE}, _NULL]}),
]
ChatTemplate = Annotated[
    Any,
    BeforeValidator(_chat_template),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, TEXT_SCHEMA, _NULL]}),
]
_AMOUNT = r"(actors|num_gpus|num_cpus|memory)=[0-9]+(\.[0-9]+)?"
EXECUTION_PATTERN = (
    rf"^(here|ray(://(auto|[^\s?/]+:[1-9][0-9]{{0,4}}))?(\?{_AMOUNT}(&{_AMOUNT})*)?)$"
)
Execution = Annotated[
    Any,
    BeforeValidator(_execution),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": EXECUTION_PATTERN}, _NULL]}),
]
Distributions = Annotated[
    Any,
    BeforeValidator(_distributions),
    WithJsonSchema({"anyOf": [{"enum": [*_MODES, False]}, _NULL]}),
]


def _track(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if value is None:
        return None
    if isinstance(names, list) and names and all(isinstance(n, str) and n for n in names):
        return tuple(dict.fromkeys(names))  # checks.py knows which there are
    raise ValueError(f"{NO_TRACKER}, or one or more of {', '.join(BUILT_IN_TRACKERS)}")


Track = Annotated[
    Any,
    BeforeValidator(_track),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [NO_TRACKER, *BUILT_IN_TRACKERS]},
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
                _NULL,
            ]
        }
    ),
]


_KINDS: Mapping[Kind, Any] = {
    "batch_size": BatchSize,
    "chat_template": ChatTemplate,
    "distributions": Distributions,
    "execution": Execution,
    "limit": Limit,
    "size": Size,
    "track": Track,
}


def entry_of(record: type[CompareOptions]) -> type[GuardEntry]:
    """Return the shape of ``run`` in a guard file: the options of a record that are keys there."""
    keys: Any = {
        name: (
            key_type(declared) if declared.option.kind else key_type(declared) | None,
            key_field(declared, default=None),
        )
        for name, declared in declared_keys(record, "run").items()
    }
    text = "How tasks are run; the command line wins over these."
    made: type[GuardEntry] = create_model("RunEntry", __base__=GuardEntry, __doc__=text, **keys)
    return made


def key_type(one: DeclaredOption) -> Any:
    """The type of an option's value in a guard file."""
    written = Text if one.type in (str, Path) else one.type
    return written if one.option.kind is None else _KINDS.get(one.option.kind, written)


def key_field(one: DeclaredOption, *, default: Any) -> Any:
    """The key of an option in a guard file: its description and bounds."""
    option = one.option
    bounds: dict[str, Any] = {"ge": option.at_least, "gt": option.above, "lt": option.below}
    if one.type is float and option.kind is None:
        bounds["allow_inf_nan"] = False
    limits = {name: bound for name, bound in bounds.items() if bound is not None}
    return Field(default=default, description=option.key, **limits)


if TYPE_CHECKING:
    RunEntry = GuardEntry
else:
    RunEntry = entry_of(RunOptions)


def read_run(entry: BaseModel) -> RunOptions:
    """Return the options that ``run`` of a guard file says."""
    declared = declared_options(RunOptions)
    given = entry.model_dump(exclude_none=True)
    return RunOptions(**{name: declared[name].read(value) for name, value in given.items()})
