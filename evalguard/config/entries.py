"""What entries of a guard file share, and the entry that says what structure answers have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
)

from evalguard.config.guard_document import Document, Loc, Problem
from evalguard.config.local_paths import resolve_path
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.structure import check_pattern, check_schema, check_tools
from evalguard.regular_file import open_regular

# Names become folder names and command-line words: no spaces, no slashes (a name with a slash
# would read like a hub id), no leading dash or dot.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1)]
TEXT_SCHEMA = {"type": "string", "minLength": 1}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Paths = Annotated[
    list[Text],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [TEXT_SCHEMA, {"type": "array", "items": TEXT_SCHEMA}]}),
]
_NAME_SCHEMA = {"type": "string", "pattern": NAME_PATTERN}
Names = Annotated[
    list[Name],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema(
        {"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "minItems": 1}]}
    ),
]


class GuardEntry(BaseModel):
    """A mapping of a guard file: unknown keys are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_KINDS = ("json", "schema", "pattern", "tools")
# Far above any schema that people write.
_MOST_FILE = 4 * 2**20
_Tools = Annotated[list[dict[str, JsonValue]], Field(min_length=1)]


class AnswerEntry(GuardEntry):
    """What the answers to a task must be; each key is a figure of them."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [key]} for key in _KINDS]})

    is_json: bool = Field(
        default=False, alias="json", description="JSON, the whole text: figure valid_json."
    )
    json_schema: Text | bool | dict[str, JsonValue] | None = Field(
        default=None,
        alias="schema",
        description="JSON that this JSON schema allows, written here or a file: valid_schema.",
    )
    pattern: Text | None = Field(
        default=None,
        description="A text that this regular expression matches as a whole: valid_pattern.",
    )
    tools: Text | _Tools | None = Field(
        default=None,
        description="Calls of these functions, in OpenAI's form, written here or a JSON file: "
        "valid_tool_call, tool_call. The text is such a call as JSON, or has it in <tool_call> "
        "tags.",
    )
    call: Literal["required", "allowed", "forbidden"] | None = Field(
        default=None,
        description="Whether a tool must be called, or an answer in words is as good. Default: "
        "required.",
    )


def expected_answers(
    entries: Mapping[str, AnswerEntry], document: Document, *, may_read: Callable[[str], bool]
) -> tuple[dict[str, ExpectedAnswer], list[Problem]]:
    """What answers are expected, by task, with their files read, and everything wrong with it.

    Args:
        may_read: whether a file may be read; one that may not is left out, and nothing is measured
            by this guard file until somebody trusts it.
    """
    answers, problems = {}, []
    for task, entry in entries.items():
        reading = _Reading(loc=("answers", task), document=document, may_read=may_read)
        answers[task] = ExpectedAnswer(
            json=entry.is_json,
            schema=reading.read("schema", entry.json_schema, check_schema),
            pattern=reading.read("pattern", entry.pattern, check_pattern, is_file=False) or "",
            tools=tuple(reading.read("tools", entry.tools, check_tools) or ()),
            call=entry.call or "required",
            as_text=True,
        )
        problems += reading.problems
        problems += _check(entry, reading.loc, document)
    return answers, problems


def _check(entry: AnswerEntry, loc: Loc, document: Document) -> Iterator[Problem]:
    given = (entry.json_schema, entry.pattern, entry.tools)
    if not entry.is_json and all(value is None for value in given):
        yield document.problem(
            loc,
            f"{_dotted(loc)} says nothing: it has none of {', '.join(_KINDS)}",
            f"{loc[-1]}: {{json: true}}",
        )
    if entry.call is not None and entry.tools is None:
        yield document.problem(
            (*loc, "call"), f"{_dotted(loc)}.call is about tools, and there are none"
        )


def _dotted(loc: Loc) -> str:
    return ".".join(map(str, loc))


class _Reading:
    """Values of one entry, read from files where they are named, and what is wrong with them."""

    def __init__(self, *, loc: Loc, document: Document, may_read: Callable[[str], bool]) -> None:
        self.loc, self.problems = loc, list[Problem]()
        self._document, self._may_read = document, may_read

    def read(self, key: str, given: Any, check: Any, *, is_file: bool = True) -> Any:
        """The value of a key that passes its check; None where it does not, or there is none."""
        if given is None:
            return None
        named = ""
        if isinstance(given, str) and is_file:
            if not self._may_read(given):
                return None
            named = f" of {given}"
            try:
                given = _read_json_file(resolve_path(given, self._document.folder))
            except ValueError as error:
                self._tell(key, f"{key}{named}: {error}")
                return None
        try:
            check(given)
        except ValueError as error:
            self._tell(key, f"{key}{named}: {error}")
            return None
        return given

    def _tell(self, key: str, message: str) -> None:
        location = (*self.loc, key)
        self.problems.append(self._document.problem(location, f"{_dotted(self.loc)}.{message}"))


def _read_json_file(path: Path) -> Any:
    try:
        with open_regular(path) as file:
            raw = file.read(_MOST_FILE + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}; a relative path starts at the guard "
                         "file") from error  # fmt: skip
    if len(raw) > _MOST_FILE:
        raise ValueError(f"is larger than {_MOST_FILE >> 20} MiB")
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from error
