"""Whether an answer has the structure that it must have: JSON, a schema, a pattern, tool calls.

A verdict is a kind, and what it is about in the words of who found it. JSON is what RFC 8259 says:
the whole text, no NaN, in no Markdown fence, since users of structured outputs hand the text to a
parser as it is. A thinking part before it that is closed is left out, as they leave it out.

Schemas are judged by the package jsonschema, by the draft that ``$schema`` names, else 2020-12.
References to other documents are never fetched. Formats are judged where that takes no package
more: date, date-time, email, ipv4, ipv6, regex, uuid. A pattern may take exponential time; after a
quarter of a second nothing is known of the answer, which is no verdict.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NoReturn

from evalguard.core.chat import find_thinking, function_name
from evalguard.core.expected_answers import (
    ExpectedAnswer,
    Schema,
    ToolCall,
    calls_of_message,
    calls_of_text,
    looks_like_call,
)

# valid               as it must be
# not_judged          nobody can say: a pattern took too long, a reference leads nowhere, or it is
#                     not known whether there are calls
# not_json            the text is no JSON, or nested deeper than parsers go
# fenced_json         it would be, without its Markdown fence
# schema_violated     JSON that the schema does not allow
# not_matched         the pattern does not match all of it
# no_call             no tool is called, and one has to be
# call_in_text        a call stands in the text, where no client finds it
# unexpected_call     a tool is called, and none may be
# too_many_calls      several calls, and one at a time is allowed
# unknown_tool        there is no such tool, or the call has no name
# other_tool          another tool than the one that has to be called
# arguments_not_json  the arguments are no JSON object
# arguments_invalid   the tool's schema does not allow them
StructureKind = Literal[
    "valid", "not_judged", "not_json", "fenced_json", "schema_violated", "not_matched", "no_call",
    "call_in_text", "unexpected_call", "too_many_calls", "unknown_tool", "other_tool",
    "arguments_not_json", "arguments_invalid",
]  # fmt: skip
STRUCTURES = ("valid_json", "valid_schema", "valid_pattern", "valid_tool_call")
"""Figures of structure."""
KIND_TEXTS: dict[StructureKind, str] = {
    "not_judged": "nobody can say",
    "not_json": "no JSON",
    "fenced_json": "JSON in a Markdown fence",
    "schema_violated": "JSON that the schema does not allow",
    "not_matched": "not matched by the pattern",
    "no_call": "no call of a tool",
    "call_in_text": "a call left in the text",
    "unexpected_call": "a call where none may be",
    "too_many_calls": "several calls where one may be",
    "unknown_tool": "a call of a tool that there is not",
    "other_tool": "a call of another tool",
    "arguments_not_json": "arguments that are no JSON object",
    "arguments_invalid": "arguments that the tool's schema does not allow",
}
"""What is wrong with an answer, in words."""
_LONGEST = 0.25  # seconds of one search for a pattern
_FORMATS = ("date", "email", "ipv4", "ipv6", "uuid")
_DATE_TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
)
_FENCED = re.compile(r"\s*```\w*\s*\n(.*?)\n?```\s*", re.DOTALL)
# Python reads no integer of more digits.
_MOST_DIGITS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureVerdict:
    """What an answer's structure is.

    Attributes:
        detail: what it is about, for people: where in the value, which tool.
    """

    kind: StructureKind
    detail: str = ""

    @property
    def share(self) -> float | None:
        """1 for a valid answer, 0 for any other; None where nobody can say."""
        return None if self.kind == "not_judged" else float(self.kind == "valid")


VALID = StructureVerdict(kind="valid")


def judge_structure(
    figure: str, text: str, message: str, expected: ExpectedAnswer
) -> StructureVerdict | None:
    """Judge what a figure of structure is of; None where nobody says what is expected.

    Args:
        figure: valid_json, valid_schema, valid_pattern or valid_tool_call.
        message: what a server answered beside the text (``Response.message``).
    """
    if figure not in expected.figures:
        return None
    if figure == "valid_json":
        return judge_json(text)
    if figure == "valid_schema" and expected.schema is not None:
        return judge_schema(text, expected.schema)
    if figure == "valid_pattern":
        return judge_pattern(text, expected.pattern)
    return judge_calls(text, message, expected)


def describe_kinds(verdicts: Iterable[StructureVerdict]) -> str:
    """Say what is wrong with how many answers, the most frequent first; "" where nothing is."""
    kinds = [verdict.kind for verdict in verdicts]
    wrong = Counter(kind for kind in kinds if kind != "valid")
    parts = (f"{times:,} {KIND_TEXTS[kind]}" for kind, times in wrong.most_common())
    return f"of {len(kinds):,} answers {'; '.join(parts)}" if wrong else ""


def judge_json(text: str) -> StructureVerdict:
    """Judge whether a text is JSON."""
    try:
        read_json(_after_thinking(text))
    except ValueError as error:
        return _no_json(text, str(error))
    return VALID


def judge_schema(text: str, schema: Schema) -> StructureVerdict:
    """Judge whether a text is JSON that a schema allows."""
    try:
        value = read_json(_after_thinking(text))
    except ValueError as error:
        return _no_json(text, str(error))
    return _judge_value(value, schema, "schema_violated")


def judge_pattern(text: str, pattern: str) -> StructureVerdict:
    """Judge whether a regular expression matches all of a text, white space around it left out."""
    try:
        is_matched = _compiled(pattern).fullmatch(_after_thinking(text).strip(), timeout=_LONGEST)
    except TimeoutError:
        return StructureVerdict(kind="not_judged", detail="the pattern takes too long")
    return VALID if is_matched else StructureVerdict(kind="not_matched")


def judge_calls(text: str, message: str, expected: ExpectedAnswer) -> StructureVerdict:
    """Judge the tool calls of an answer; words beside calls are allowed, as OpenAI allows them.

    Args:
        message: what a server answered beside the text (``Response.message``).
    """
    calls = written_calls(text, message, expected)
    if calls is None:
        return StructureVerdict(kind="not_judged", detail="in which form it calls tools is unknown")
    if not calls:
        names = frozenset(function_name(tool) for tool in expected.tools)
        if looks_like_call(_after_thinking(text), names) and expected.call != "forbidden":
            return StructureVerdict(kind="call_in_text")
        return StructureVerdict(kind="no_call") if expected.call == "required" else VALID
    if expected.call == "forbidden":
        return StructureVerdict(kind="unexpected_call", detail=calls[0].name)
    if len(calls) > 1 and not expected.parallel:
        return StructureVerdict(kind="too_many_calls", detail=str(len(calls)))
    verdicts = (_judge_call(call, expected) for call in calls)
    return next((verdict for verdict in verdicts if verdict.kind != "valid"), VALID)


def written_calls(text: str, message: str, expected: ExpectedAnswer) -> tuple[ToolCall, ...] | None:
    """The calls of an answer; None where nobody knows whether there are any."""
    if expected.as_text:
        return calls_of_text(_after_thinking(text))
    return calls_of_message(message)


def check_schema(schema: object) -> None:
    """Refuse what is no JSON schema.

    Raises:
        ValueError: it is none, its ``$schema`` is no draft that is known, or a reference leads out
            of it or nowhere; with the place and the reason.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema, (Mapping, bool)):
        raise ValueError("a JSON schema is an object, true or false")
    if isinstance(schema, bool):
        return
    named = schema.get("$schema")
    draft = Draft202012Validator if named is None else None
    if isinstance(named, str):
        draft = validator_for(schema, default=None)
    if draft is None:
        raise ValueError(f"$schema {named!r} is no draft of JSON schema that is known")
    try:
        draft.check_schema(schema, format_checker=_formats())
    except SchemaError as error:
        path = "/".join(map(str, error.absolute_path))
        raise ValueError(f"{path}: {error.message}" if path else error.message) from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    for reference in _references(schema):
        _check_reference(schema, reference)


def check_pattern(pattern: str) -> None:
    """Refuse what is no regular expression.

    Raises:
        ValueError: with the reason.
    """
    import regex

    try:
        _compiled(pattern)
    except regex.error as error:
        raise ValueError(f"no regular expression: {error}") from error


def check_tools(tools: object) -> None:
    """Refuse what is no list of functions in OpenAI's form.

    Raises:
        ValueError: with the place and the reason.
    """
    if not isinstance(tools, (list, tuple)) or not tools:
        raise ValueError("tools are a list of functions, at least one")
    names: set[str] = set()
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not function_name(tool):
            raise ValueError(
                f'[{number}]: no function: {{"type": "function", "function": {{"name": "f", '
                '"parameters": {...}}}'
            )
        name = function_name(tool)
        if name in names:
            raise ValueError(f"[{number}]: there are two functions '{name}'")
        names.add(name)
        try:
            check_schema(_parameters(tool))
        except ValueError as error:
            raise ValueError(f"[{number}], parameters of '{name}': {error}") from error


def read_json(text: str) -> Any:
    """Read JSON, and nothing else: no NaN, no white space of other kinds around it.

    Raises:
        ValueError: it is none, or nested deeper than parsers go.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_whole_number)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def _no_json(text: str, detail: str) -> StructureVerdict:
    fenced = _FENCED.fullmatch(_after_thinking(text))
    if fenced is not None:
        try:
            read_json(fenced[1])
        except ValueError:
            pass
        else:
            return StructureVerdict(kind="fenced_json")
    return StructureVerdict(kind="not_json", detail=detail)


def _after_thinking(text: str) -> str:
    part = find_thinking(text)
    return part.rest if part is not None and part.is_closed else text


def _judge_call(call: ToolCall, expected: ExpectedAnswer) -> StructureVerdict:
    tool = next(
        (offered for offered in expected.tools if function_name(offered) == call.name), None
    )
    if tool is None or not call.name:
        return StructureVerdict(kind="unknown_tool", detail=call.name)
    if expected.named not in ("", call.name):
        return StructureVerdict(kind="other_tool", detail=call.name)
    try:
        arguments = read_json(call.arguments)
    except ValueError as error:
        return StructureVerdict(kind="arguments_not_json", detail=f"{call.name}: {error}")
    if not isinstance(arguments, dict):
        return StructureVerdict(kind="arguments_not_json", detail=f"{call.name}: no object")
    verdict = _judge_value(arguments, _parameters(tool), "arguments_invalid")
    if verdict.kind == "valid":
        return verdict
    return StructureVerdict(kind=verdict.kind, detail=f"{call.name}: {verdict.detail}")


def _parameters(tool: Mapping[str, Any]) -> Any:
    """The schema of a tool's arguments; a tool that has none takes any object."""
    parameters = tool["function"].get("parameters")
    return True if parameters is None else parameters


def _judge_value(value: Any, schema: Schema, otherwise: StructureKind) -> StructureVerdict:
    import regex
    from referencing.exceptions import Unresolvable

    written = json.dumps(schema, sort_keys=True)
    if '"unevaluatedProperties"' in written and '"patternProperties"' in written:
        # jsonschema looks for these patterns by itself, for as long as it takes.
        return StructureVerdict(kind="not_judged", detail="unevaluatedProperties beside patterns")
    try:
        errors = _validator(written).iter_errors(value)
        error = next(iter(errors), None)
    except TimeoutError:
        return StructureVerdict(kind="not_judged", detail="a pattern of the schema takes too long")
    except (RecursionError, Unresolvable, regex.error) as failure:
        return StructureVerdict(kind="not_judged", detail=f"the schema: {failure}")
    if error is None:
        return VALID
    return StructureVerdict(kind=otherwise, detail=f"{error.json_path}: {error.message}")


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    """A validator of a schema as JSON text; its patterns are bounded, and it fetches nothing."""
    from jsonschema.validators import Draft202012Validator, extend, validator_for
    from referencing import Registry

    schema = json.loads(schema_text)
    draft = validator_for(schema, default=Draft202012Validator)
    bounded = extend(
        draft,
        {
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
        },
    )
    return bounded(schema, registry=Registry(), format_checker=_formats())


@lru_cache(maxsize=1)
def _formats() -> Any:
    from jsonschema import FormatChecker

    formats = FormatChecker(formats=_FORMATS)
    formats.checks("date-time")(_is_date_time)
    formats.checks("regex")(_is_pattern)
    return formats


def _is_pattern(value: object) -> bool:
    """Whether a text is a pattern as they are searched for here; ECMA's classes (\\p{L}) are."""
    if not isinstance(value, str):
        return True
    try:
        check_pattern(value)
    except ValueError:
        return False
    return True


def _is_date_time(value: object) -> bool:
    """By RFC 3339, the days of single months aside."""
    return not isinstance(value, str) or _DATE_TIME.fullmatch(value) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """By the package regex, which knows ``re``'s syntax and can be stopped."""
    import regex

    return regex.compile(pattern)


def _holds(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text, timeout=_LONGEST) is not None


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:  # noqa: ARG001
    from jsonschema.exceptions import ValidationError

    if validator.is_type(value, "string") and not _holds(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:  # noqa: ARG001
    if not validator.is_type(value, "object"):
        return
    for pattern, own in given.items():
        for name, content in value.items():
            if _holds(pattern, name):
                yield from validator.descend(content, own, path=name, schema_path=pattern)


def _additional_properties(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(value, "object"):
        return
    patterns = schema.get("patternProperties", {})
    extra = [
        name
        for name in value
        if name not in schema.get("properties", {})
        and not any(_holds(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(given, "object"):
        for name in extra:
            yield from validator.descend(value[name], given, path=name)
    elif not given and extra:
        named = ", ".join(map(repr, extra))
        yield ValidationError(f"additional properties are not allowed: {named}")


def _references(schema: Any) -> Iterator[str]:
    """References of a schema; values that only look like schemas are passed by."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            reference = part.get("$ref")
            if isinstance(reference, str):
                yield reference
            waiting += [of for name, of in part.items() if name not in _VALUES]
        elif isinstance(part, (list, tuple)):
            waiting += part


_VALUES = ("enum", "const", "default", "examples", "example")


def _check_reference(schema: Mapping[str, Any], reference: str) -> None:
    document, _, pointer = reference.partition("#")
    if document and not _has_identity(schema, document):
        raise ValueError(
            f"$ref {reference!r} leads out of the schema, and nothing is fetched: put what it "
            "names under $defs"
        )
    if document or not pointer.startswith("/"):
        return
    part: Any = schema
    for step in pointer.split("/")[1:]:
        name = _percent_decoded(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, (list, tuple)) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, Mapping) and name in part:
            part = part[name]
        else:
            raise ValueError(f"$ref {reference!r} leads nowhere: there is no {name!r}")


def _has_identity(schema: Any, document: str) -> bool:
    """Whether a schema, or one in it, has an identity; drafts' own schemas are known, too."""
    from jsonschema_specifications import REGISTRY

    if document in REGISTRY or document + "#" in REGISTRY:
        return True
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if any(isinstance(part.get(key), str) for key in ("$id", "id")):
                return True  # relative to it, which jsonschema works out
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return False


def _percent_decoded(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)
