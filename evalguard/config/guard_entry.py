"""Entry: what the parts of a guard file have in common, and the types of their simplest fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

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
