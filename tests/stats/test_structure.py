"""An answer's structure is judged as those who use it would: against jsonschema, and by kinds."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.structure import (
    StructureKind,
    check_pattern,
    check_schema,
    check_tools,
    describe_kinds,
    judge_calls,
    judge_json,
    judge_pattern,
    judge_schema,
)

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
CALL = ("get_weather", '{"city": "Oslo"}')


def judged(
    *calls: tuple[str, str], text: str = "", tools: tuple[Any, ...] = (WEATHER, CLOCK), **asked: Any
) -> StructureKind:
    message: dict[str, Any] = {"finish_reason": "stop"}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return judge_calls(text, json.dumps(message), ExpectedAnswer(tools=tools, **asked)).kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": [1, 2.5e3, null]}', "valid"),
        (' \n"a text"\n', "valid"),
        ("9" * 5000, "valid"),
        ("<think>\nA city.\n</think>\n\n{}", "valid"),
        ("", "not_json"),
        ("{'a': 1}", "not_json"),
        ('{"a": 1,}', "not_json"),
        ("NaN", "not_json"),
        ('{"a": Infinity}', "not_json"),
        ('{"a": 1} Done.', "not_json"),
        ('{"a": ', "not_json"),
        ("\u00a0{}", "not_json"),
        ("[" * 100_000, "not_json"),
        ('```json\n{"a": 1}\n```', "fenced_json"),
        ("```json\n{a}\n```", "not_json"),
    ],
)
def test_json_is_the_whole_text_as_a_parser_takes_it(text: str, kind: StructureKind) -> None:
    assert judge_json(text).kind == kind


@given(st.text(alphabet='{}[]",:0123456789.-+eE truefalsn\\u', max_size=30))
def test_json_is_what_python_reads_but_for_its_own_constants(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        is_json = False
    else:
        is_json = True
    assert (judge_json(text).kind == "valid") == is_json


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "2024-02-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


@st.composite
def schemas(draw: Any, depth: int = 2) -> Any:
    schema: dict[str, Any] = {}
    if draw(st.booleans()):
        schema["type"] = draw(TYPES)
    if draw(st.booleans()):
        schema["pattern"] = draw(st.sampled_from(["^a", "b$", "a.*b"]))
    if draw(st.booleans()):
        schema["minimum"] = draw(st.integers(-2, 2))
    if depth and draw(st.booleans()):
        schema["properties"] = {"a": draw(schemas(depth - 1))}
    if depth and draw(st.booleans()):
        schema["patternProperties"] = {"^b": draw(schemas(depth - 1))}
    if depth and draw(st.booleans()):
        schema["additionalProperties"] = draw(st.booleans() | schemas(depth - 1))
    if depth and draw(st.booleans()):
        schema["items"] = draw(schemas(depth - 1))
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from("ab"), unique=True))
    if depth and draw(st.booleans()):
        schema["anyOf"] = draw(st.lists(schemas(depth - 1), min_size=1, max_size=2))
    return schema


@given(schemas(), VALUES)
def test_a_value_is_allowed_as_jsonschema_allows_it(schema: Any, value: Any) -> None:
    allowed = jsonschema.Draft202012Validator(schema).is_valid(value)
    kind = judge_schema(json.dumps(value), schema).kind
    assert kind == ("valid" if allowed else "schema_violated")


@given(schemas(), st.dictionaries(st.sampled_from("ab"), VALUES))
def test_arguments_are_allowed_as_jsonschema_allows_them(schema: Any, value: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    allowed = jsonschema.Draft202012Validator(schema).is_valid(value)
    kind = judged(("f", json.dumps(value)), tools=(tool,))
    assert kind == ("valid" if allowed else "arguments_invalid")


def test_a_schema_is_judged_by_the_draft_that_it_names() -> None:
    tuples: dict[str, Any] = {"items": [{"type": "string"}, {"type": "integer"}]}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **tuples}
    assert judge_schema('["a", 1]', old).kind == "valid"
    assert judge_schema('["a", "b"]', old).kind == "schema_violated"


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("date", "2024-02-29", "2024-02-30"),
        ("date-time", "2024-02-29T12:00:00Z", "2024-02-29 noon"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        ("ipv4", "10.0.0.1", "10.0.0.256"),
        ("email", "a@b.org", "a.b.org"),
    ],
)
def test_formats_count(form: str, right: str, wrong: str) -> None:
    schema = {"type": "string", "format": form}
    assert judge_schema(json.dumps(right), schema).kind == "valid"
    assert judge_schema(json.dumps(wrong), schema).kind == "schema_violated"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"properties": []},
        {"$schema": "https://example.org/of/our/own"},
        {"$schema": 7},
        {"pattern": "(a"},
        {"patternProperties": {"(a": {}}},
        {"$ref": "https://example.org/city.json"},
        {"$ref": "city.json"},
        {"properties": {"a": {"$ref": "#/$defs/city"}}, "$defs": {"town": {}}},
        ["string"],
        None,
        "object",
    ],
)
def test_what_is_no_schema_or_leads_out_of_it_is_refused(schema: object) -> None:
    with pytest.raises(ValueError):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
        {"const": {"$ref": "https://example.org"}},
        {"properties": {"$ref": {"type": "string"}}},
        {"patternProperties": {r"^\p{L}+$": {"pattern": r"^\p{Lu}"}}},
        {"$id": "https://example.org/a", "$defs": {"b": {"$id": "b"}}, "$ref": "b"},
        {"$ref": "http://json-schema.org/draft-07/schema#"},
    ],
)
def test_a_schema_may_refer_to_itself_and_to_the_drafts(schema: Any) -> None:
    check_schema(schema)
    assert judge_schema("{}", schema).kind in ("valid", "schema_violated")


def test_a_schema_that_never_ends_judges_nothing() -> None:
    verdict = judge_schema("{}", {"$ref": "#"})
    assert (verdict.kind, verdict.share) == ("not_judged", None)


@pytest.mark.parametrize(
    ("pattern", "text", "kind"),
    [
        (r"\d+", "42", "valid"),
        (r"\d+", " 42\n", "valid"),
        (r"\d+", "The answer is 42", "not_matched"),
        (r"(?i)yes|no", "YES", "valid"),
    ],
)
def test_a_pattern_matches_all_of_a_text(pattern: str, text: str, kind: StructureKind) -> None:
    assert judge_pattern(text, pattern).kind == kind


def test_a_pattern_that_takes_exponential_time_does_not_hang_and_judges_nothing() -> None:
    slow = r"^(a|b|ab)*[c]$"
    text = "ab" * 2000 + "cd"
    schemas: list[Any] = [
        {"pattern": slow},
        {"patternProperties": {slow: False}},
        {"patternProperties": {slow: {}}, "additionalProperties": False},
        {"patternProperties": {slow: {}}, "unevaluatedProperties": False},
    ]
    before = time.monotonic()
    assert judge_pattern(text, slow).kind == "not_judged"
    for schema in schemas:
        value = text if "pattern" in schema else {text: 1}
        assert judge_schema(json.dumps(value), schema).kind == "not_judged"
    assert time.monotonic() - before < 10


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        check_pattern("(a")


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([CALL], "valid"),
        ([CALL, CALL], "valid"),
        ([("get_time", "{}")], "valid"),
        ([("get_time", '{"zone": "CET"}')], "valid"),
        ([("weather", "{}")], "unknown_tool"),
        ([("", "{}")], "unknown_tool"),
        ([CALL, ("weather", "{}")], "unknown_tool"),
        ([("get_weather", "Oslo")], "arguments_not_json"),
        ([("get_weather", "")], "arguments_not_json"),
        ([("get_weather", '{"city": "Os')], "arguments_not_json"),
        ([("get_weather", '["Oslo"]')], "arguments_not_json"),
        ([("get_weather", '"{\\"city\\": \\"Oslo\\"}"')], "arguments_not_json"),
        ([("get_weather", "{}")], "arguments_invalid"),
        ([("get_weather", '{"city": 3}')], "arguments_invalid"),
        ([("get_weather", '{"city": "Oslo", "days": "2"}')], "arguments_invalid"),
        ([("get_weather", '{"city": "Oslo", "days": 0}')], "arguments_invalid"),
        ([("get_weather", '{"city": "Oslo", "unit": "C"}')], "arguments_invalid"),
    ],
)
def test_calls_are_of_known_tools_with_arguments_that_their_schema_allows(
    calls: list[tuple[str, str]], kind: StructureKind
) -> None:
    assert judged(*calls) == kind


def test_words_beside_a_call_are_allowed_and_words_instead_where_no_call_is_required() -> None:
    assert judged(CALL, text="Let me look.", call="required") == "valid"
    assert judged(text="It rains.") == "valid"
    assert judged(text="It rains.", call="required") == "no_call"


def test_a_choice_of_tools_is_kept() -> None:
    assert judged(CALL, call="forbidden") == "unexpected_call"
    assert judged(("get_time", "{}"), call="required", named="get_weather") == "other_tool"
    assert judged(CALL, CALL, parallel=False) == "too_many_calls"


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        'I will: {"name": "get_weather", "arguments": {"city": "Oslo"}}',
        "<tool_call><function=get_weather><parameter=city>Oslo</parameter></function></tool_call>",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {}}]',
        '```json\n{"name": "get_weather", "parameters": {"city": "Oslo"}}\n```',
    ],
)
def test_a_call_that_a_server_left_in_the_text_is_none(text: str) -> None:
    assert judged(text=text) == "call_in_text"


def test_json_of_other_things_is_no_call_in_a_text() -> None:
    assert judged(text='{"name": "Oslo", "arguments": ["for", "against"]}') == "valid"


def test_calls_that_nobody_can_read_are_not_judged() -> None:
    message = json.dumps({"tool_calls": "unknown"})
    assert judge_calls("", message, ExpectedAnswer(tools=(WEATHER,))).share is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Oslo"}}', "valid"),
        ('{"name": "get_weather", "parameters": {"city": "Oslo"}}', "valid"),
        ('[{"name": "get_time", "arguments": {}}, {"name": "get_time", "arguments": {}}]', "valid"),
        ('{"function": {"name": "get_time", "arguments": "{}"}}', "valid"),
        ('Yes. <tool_call>{"name": "get_time", "arguments": {}}</tool_call>', "valid"),
        ('{"name": "get_weather", "arguments": {}}', "arguments_invalid"),
        ('Sure: {"name": "get_weather", "arguments": {"city": "Oslo"}}', "call_in_text"),
        ("It rains.", "no_call"),
    ],
)
def test_calls_written_into_a_text_are_json(text: str, kind: StructureKind) -> None:
    expected = ExpectedAnswer(tools=(WEATHER, CLOCK), call="required", as_text=True)
    assert judge_calls(text, "", expected).kind == kind


def test_what_is_wrong_is_counted_in_words() -> None:
    verdicts = [judge_json(text) for text in ("{}", "{", "```\n{}\n```", "[")]
    assert describe_kinds(verdicts) == "of 4 answers 2 no JSON; 1 JSON in a Markdown fence"
    assert describe_kinds(verdicts[:1]) == ""


@pytest.mark.parametrize(
    "tools",
    [
        [],
        {},
        [{"name": "f"}],
        [WEATHER, WEATHER],
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "text"}}}],
    ],
)
def test_what_are_no_tools_is_refused(tools: object) -> None:
    with pytest.raises(ValueError):
        check_tools(tools)
