"""``--requests``: conversations and tools of a file, from servers and models to a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from chat_models import HERMES, save_chat_model, teach_replies
from chat_server import Answer, ChatServer, call, serving

from evalguard.comparison.compare import compare
from evalguard.comparison.result import CompareResult
from evalguard.errors import EvaluationError

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
VALID = '{"city": "Paris", "days": 2}'
NO_JSON = '{"city": "Paris"'
# What a server does with a call -> the name and the arguments that come.
FAULTS = {
    "wrong name": ("get_wether", VALID),
    "wrong type": ("get_weather", '{"city": "Paris", "days": "2"}'),
    "missing argument": ("get_weather", '{"days": 2}'),
    "one argument too many": ("get_weather", '{"city": "Paris", "country": "France"}'),
    "no JSON": ("get_weather", NO_JSON),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def write(folder: Path, number: int, **more: Any) -> Path:
    path = folder / "calls.jsonl"
    lines = [
        {
            "id": f"r{n}",
            "messages": [{"role": "user", "content": f"Weather in city {n}?"}],
            "tools": [TOOL],
            "max_tokens": 60,
            **more,
        }
        for n in range(number)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def calling(name: str, arguments: str) -> Answer:
    def answer(asked: Mapping[str, Any]) -> Any:
        return call(name, arguments) if asked.get("tools") else None

    return answer


def compared(base: ChatServer, candidate: ChatServer, requests: Path, **more: Any) -> CompareResult:
    with ExitStack() as stack:
        sides = [stack.enter_context(serving(server)).url for server in (base, candidate)]
        return compare(*sides, requests=requests, quiet=True, bisect="never", **more)


def figures(result: CompareResult) -> dict[str, tuple[float | None, float | None, str]]:
    return {one.metric: (one.base, one.candidate, one.outcome) for one in result.report.comparisons}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "in pieces"])
def test_calls_that_a_schema_refuses_are_a_regression(here: Path, streams: bool) -> None:
    jsonschema.validate(json.loads(VALID), SCHEMA)
    for name, arguments in FAULTS.values():  # by jsonschema's own word
        if name == "get_weather" and arguments != NO_JSON:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(json.loads(arguments), SCHEMA)

    def answer(asked: Mapping[str, Any]) -> Any:
        """Right for every sixth city, and otherwise each fault in its turn."""
        words = str(asked["messages"][-1]["content"]).split()
        number = int(words[-1].rstrip("?")) % 6 if asked.get("tools") else 0
        return call(*[("get_weather", VALID), *FAULTS.values()][number])

    result = compared(
        ChatServer(answer=calling("get_weather", VALID)),
        ChatServer(answer=answer, streams=streams),
        write(here, 24),
    )
    found = figures(result)
    base, candidate, outcome = found["valid_tool_call"]
    assert (base, outcome) == (1.0, "regressed")
    assert candidate == pytest.approx(4 / 24)
    assert found["tool_call"][:2] == (1.0, 1.0)
    assert result.exit_code == 1


def test_calls_that_stop_coming_are_a_regression(here: Path) -> None:
    result = compared(
        ChatServer(answer=calling("get_weather", VALID)),
        ChatServer(answer=lambda asked: None),
        write(here, 20),
    )
    found = figures(result)
    assert found["tool_call"] == (1.0, 0.0, "regressed")
    assert found["valid_tool_call"][:2] == (1.0, 1.0)  # words are an answer, too
    asked = compared(
        ChatServer(answer=calling("get_weather", VALID)),
        ChatServer(answer=lambda asked: None),
        write(here, 20, tool_choice="required"),
    )
    assert figures(asked)["valid_tool_call"] == (1.0, 0.0, "regressed")


def test_words_beside_a_call_make_it_no_worse(here: Path) -> None:
    def with_words(asked: Mapping[str, Any]) -> Any:
        return {**call("get_weather", VALID), "content": "Let me look."}

    result = compared(
        ChatServer(answer=calling("get_weather", VALID)),
        ChatServer(answer=with_words),
        write(here, 20),
    )
    assert result.exit_code == 0
    assert figures(result)["valid_tool_call"][:2] == (1.0, 1.0)


def test_the_same_endpoint_passes(here: Path) -> None:
    server = ChatServer(answer=calling("get_weather", VALID))
    with serving(server):
        result = compare(
            server.url, server.url, requests=write(here, 20), quiet=True, bisect="never", limit=8
        )
    assert result.exit_code == 0
    assert {one.n for one in result.report.comparisons} == {8}
    assert set(figures(result)) == {"valid_tool_call", "tool_call", "empty", "loops", "cut"}


def test_answers_without_stop_reasons_leave_out_what_was_cut(here: Path) -> None:
    server = ChatServer(answer=calling("get_weather", VALID), reasons=False)
    result = compared(server, ChatServer(answer=server.answer), write(here, 20))
    assert "cut" not in figures(result)
    assert result.exit_code == 0
    limited = compared(
        server, ChatServer(answer=server.answer), write(here, 20), gate_limits={"cut": "1pp"}
    )
    assert limited.exit_code == 3  # what is asked for by name, and not known, is no pass


@pytest.mark.parametrize(
    "asked",
    [
        {"gate_limits": {"cut": 0}},
        {"gate_limits": {"calls/cut": "2%"}},
        {"gate_limits": {"cut": None}},
        {"gate_limits": {"cut": "1pp"}},
        {"gate_limits": {"calls/cut": None}},
    ],
    ids=str,
)
def test_a_figure_that_somebody_names_is_missed_where_no_answer_shows_it(
    here: Path, asked: dict[str, Any]
) -> None:
    base = ChatServer(answer=calling("get_weather", VALID))
    silent = ChatServer(answer=calling("get_weather", VALID), reasons=False)
    result = compared(base, silent, write(here, 4), **asked)
    assert result.exit_code == 3
    assert "nobody says which texts were cut" in " ".join(result.render().split())


@pytest.mark.parametrize("limit", [None, "20pp", "90%"])
def test_answers_that_differ_without_shown_tokens_are_not_taken_for_the_same(
    here: Path, limit: str | None
) -> None:
    def other(asked: Mapping[str, Any]) -> Any:
        said = asked["messages"][-1]["content"]
        return {"role": "assistant", "content": f"{'on' if '1' in said else 'to'} {said}"}

    result = compared(
        ChatServer(answer=lambda _: None),
        ChatServer(answer=other),
        write(here, 12, tools=[]),
        gate_limits={"first_difference_beyond_ties": limit},
    )
    assert result.exit_code == 3
    assert "tokens are not shown" in " ".join(result.render().split())


def test_json_is_judged_by_the_schema_of_its_request(here: Path) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}

    def saying(text: str) -> Answer:
        return lambda asked: {"role": "assistant", "content": text}

    requests = write(here, 20, tools=None, response_format=asked)
    result = compared(
        ChatServer(answer=saying(VALID)),
        ChatServer(answer=saying(f"Sure! {VALID}")),
        requests,
    )
    assert figures(result)["valid_schema"] == (1.0, 0.0, "regressed")


def test_a_server_that_refuses_tools_gives_no_verdict(here: Path) -> None:
    base = ChatServer(answer=calling("get_weather", VALID))
    refusing = ChatServer(answer=lambda asked: 400 if asked.get("tools") else None)
    with pytest.raises(EvaluationError, match="refuses requests with tools"):
        compared(base, refusing, write(here, 20))


@pytest.mark.slow
def test_a_model_in_this_process_beside_a_server(here: Path) -> None:
    folder = save_chat_model(here / "model")
    written = f'<tool_call>{{"name": "get_weather", "arguments": {VALID}}}</tool_call>'
    replies = {f"Weather in city {n}?": written for n in range(3)}
    teach_replies(folder, replies, tools=[TOOL])
    server = ChatServer(answer=calling("get_weather", VALID))
    with serving(server):
        result = compare(folder, server.url, requests=write(here, 3), quiet=True, bisect="never")
    assert figures(result)["valid_tool_call"][:2] == (1.0, 1.0)
    (told,) = (note for note in result.report.notes if "prompts are compared" in note)
    assert "as conversations" in told


def test_calls_in_a_form_that_nobody_knows_are_no_pass(here: Path) -> None:
    taught = '<tool_call>{"name": ..., "arguments": ...}</tool_call>'
    template = HERMES.replace(taught, "!call NAME").replace("<tool_call>", "!call ")
    folder = save_chat_model(here / "model", template)
    result = compare(
        folder, folder, requests=write(here, 2, max_tokens=4), quiet=True, bisect="never"
    )
    assert figures(result)["valid_tool_call"] == (None, None, "failed")
    assert result.exit_code == 3


def test_a_guard_file_names_requests_beside_its_tasks(here: Path) -> None:
    write(here, 4)
    server = ChatServer(answer=calling("get_weather", VALID))
    with serving(server):
        guard = f"""
models:
  a: {{model: local-chat-completions, model_args: {{base_url: "{server.url}/chat/completions"}}}}
  b: {{extends: a}}
pairs: [{{base: a, cand: b}}]
requests: calls.jsonl
"""
        (here / "evalguard.yaml").write_text(guard, encoding="utf-8")
        result = compare("a", "b", config=here / "evalguard.yaml", quiet=True, bisect="never")
    assert {one.task for one in result.report.comparisons} == {"calls"}
