"""``answers:`` of a guard file: what structure the answers to a task must have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guard_texts import load

from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.errors import GuardFileError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def answers(folder: Path, text: str) -> ExpectedAnswer:
    return load(folder, f"answers:\n  t: {text}\ngate: {{margin: 1}}\n").answers["t"]


def test_a_task_has_json_a_schema_a_pattern_or_tools(tmp_path: Path) -> None:
    expected = answers(tmp_path, "{json: true}")
    assert (expected.json, expected.figures) == (True, ("valid_json",))
    assert answers(tmp_path, "{schema: {type: object}}").schema == {"type": "object"}
    assert answers(tmp_path, "{schema: false}").figures == ("valid_schema",)
    assert answers(tmp_path, r"{pattern: '\d+'}").pattern == r"\d+"
    expected = answers(tmp_path, f"{{tools: [{json.dumps(TOOL)}]}}")
    assert (expected.tools, expected.call, expected.as_text) == ((TOOL,), "required", True)
    assert expected.figures == ("valid_tool_call", "tool_call")


def test_a_schema_and_tools_may_be_files_beside_the_guard_file(tmp_path: Path) -> None:
    (tmp_path / "city.json").write_text('{"type": "string"}', encoding="utf-8")
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]), encoding="utf-8")
    expected = answers(tmp_path, "{schema: city.json, tools: tools.json, call: allowed}")
    assert (expected.schema, expected.tools) == ({"type": "string"}, (TOOL,))
    assert expected.call == "allowed"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "answers.t says nothing: it has none of json, schema, pattern, tools"),
        ("{json: false}", "answers.t says nothing"),
        ("{json: 1}", "answers.t.json"),
        ("{jsn: true}", "unknown key 'jsn' in answers.t; did you mean 'json'?"),
        ("{schema: {type: text}}", "answers.t.schema: type: 'text' is not valid"),
        ("{schema: {$ref: 'https://example.org/a'}}", "leads out of the schema"),
        ("{schema: nothing.json}", "answers.t.schema of nothing.json: cannot be read"),
        ("{schema: broken.json}", "answers.t.schema of broken.json: is no JSON"),
        ("{schema: .}", "answers.t.schema of .: cannot be read"),
        ("{pattern: '(a'}", "answers.t.pattern: no regular expression"),
        ("{tools: []}", "answers.t.tools"),
        ("{tools: [{name: f}]}", "answers.t.tools: [0]: no function"),
        ("{tools: broken.json}", "is no JSON"),
        ("{json: true, call: allowed}", "answers.t.call is about tools, and there are none"),
        ("{tools: [{function: {name: f}}], call: maybe}", "answers.t.call"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_its_line(
    tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "broken.json").write_text('{"type": ', encoding="utf-8")
    with pytest.raises(GuardFileError) as error:
        answers(tmp_path, text)
    assert told in str(error.value)
    assert error.value.where.endswith(":2")


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(GuardFileError) as error:
        load(tmp_path, "answers:\n  a: {}\n  b: {pattern: '('}\nmodels: {m: {build: {call: x}}}\n")
    assert len(error.value.others) >= 1
