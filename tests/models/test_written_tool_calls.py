"""Tool calls in the forms that families of models write: valid, broken, with words around them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evalguard.models.written_tool_calls import BROKEN, find_tool_form, split_thinking

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
ARGUMENTS = {"city": "Paris", "days": 2}
JSON = json.dumps(ARGUMENTS)

# The marks of each family's published template, and the same call as its model writes it.
FORMS = {
    "Hermes": (
        '<tool_call>{"name": ..., "arguments": ...}</tool_call>',
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>',
    ),
    "Qwen XML": (
        "<tool_call><function=NAME><parameter=KEY>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    "GLM": (
        "<tool_call>{function-name}<arg_key>{key}</arg_key>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    ),
    "Llama 3": (
        "<|python_tag|> ipython",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {JSON}}}',
    ),
    "Mistral": (
        "[TOOL_CALLS]",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON}}}]',
    ),
    "DeepSeek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "gpt-oss (harmony)": (
        "<|channel|>analysis<|message|>",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{JSON}<|call|>",
    ),
    "JSON": (
        '{"name": ..., "parameters": ...}',
        f'{{"name": "get_weather", "parameters": {JSON}}}',
    ),
}
OTHER_WAYS = [
    ("Mistral", f"[TOOL_CALLS]get_weather[ARGS]{JSON}"),
    ("Mistral", f"[TOOL_CALLS]get_weather{JSON}"),
    ("DeepSeek", f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"),
    ("Llama 3", f'{{"name": "get_weather", "parameters": {JSON}}}'),
    ("JSON", f'```json\n{{"name": "get_weather", "arguments": {JSON}}}\n```'),
    ("Hermes", f'<tool_call>{{"name": "get_weather", "arguments": {JSON}}}'),  # ended, not closed
    (
        "gpt-oss (harmony)",
        "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant to=functions."
        f"get_weather<|channel|>commentary json<|message|>{JSON}",
    ),
]
# Where a call stands between marks, words may stand beside it.
MARKED = [name for name in FORMS if name not in ("JSON", "Llama 3", "gpt-oss (harmony)")]


def read(name: str, text: str) -> Any:
    form = find_tool_form(FORMS[name][0])
    assert form is not None
    assert form.name == name
    return form.read(text, TOOLS)


@pytest.mark.parametrize("name", FORMS)
def test_a_call_is_read_in_the_form_of_its_template(name: str) -> None:
    found = read(name, FORMS[name][1])
    (call,) = found.calls
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == ARGUMENTS
    assert found.text == ""
    assert call.message["type"] == "function"


@pytest.mark.parametrize(("name", "text"), OTHER_WAYS)
def test_a_family_may_write_in_more_than_one_way(name: str, text: str) -> None:
    (call,) = read(name, text).calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", ARGUMENTS)


@pytest.mark.parametrize("name", MARKED)
def test_words_beside_a_call_are_its_text(name: str) -> None:
    found = read(name, f"Let me look.\n{FORMS[name][1]}")
    assert found.text == "Let me look."
    assert len(found.calls) == 1


@pytest.mark.parametrize("name", MARKED)
def test_two_calls_are_two(name: str) -> None:
    text = FORMS[name][1]
    assert len(read(name, text + "\n" + text).calls) == 2


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("text", ["It is 18 degrees.", "", '{"colour": "red"}', "[1, 2]"])
def test_an_answer_in_words_or_other_json_is_no_call(name: str, text: str) -> None:
    found = read(name, text)
    assert found.calls == ()
    assert found.text == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Hermes", '<tool_call>{"name": "get_weather", "arguments": {</tool_call>'),
        ("Hermes", "<tool_call>get_weather(Paris)</tool_call>"),
        ("Qwen XML", "<tool_call>get_weather</tool_call>"),
        ("Mistral", "[TOOL_CALLS]the weather, please"),
        ("DeepSeek", "<｜tool▁call▁begin｜>get_weather<｜tool▁call▁end｜>"),
        ("Kimi K2", "<|tool_call_begin|>functions.get_weather:0<|tool_call_end|>"),
        ("Llama 3", "<|python_tag|>print(1)"),
    ],
)
def test_a_call_that_is_begun_and_is_none_is_broken(name: str, text: str) -> None:
    (call,) = read(name, text).calls
    assert call.name == BROKEN


def test_arguments_stay_as_they_were_written() -> None:
    text = '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": 1<|tool_call_end|>'
    (call,) = read("Kimi K2", text).calls
    assert (call.name, call.arguments) == ("f", '{"a": 1')


def test_values_that_are_written_as_texts_have_their_tools_types() -> None:
    text = FORMS["Qwen XML"][1].replace("Paris", "75001")
    (call,) = read("Qwen XML", text).calls
    assert json.loads(call.arguments) == {"city": "75001", "days": 2}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>so</think>yes", ("so", "yes", False)),
        ("so</think>\n\nyes", ("so", "yes", False)),  # the prompt holds the opening
        ("<think>so and", ("", "<think>so and", True)),
        ("yes", ("", "yes", False)),
    ],
)
def test_thinking_is_taken_off_where_it_ends(text: str, parts: tuple[str, str, bool]) -> None:
    assert split_thinking(text) == parts


def test_thinking_without_an_end_is_left_whole() -> None:
    found = read("Hermes", '<think>I could <tool_call>{"name": "x"}</tool_call> but')
    assert found.unclosed
    assert found.calls == ()
    assert found.text.startswith("<think>")


def test_a_template_of_no_known_form_has_none() -> None:
    assert find_tool_form("{{ tools | tojson }} use !call(name)") is None
