"""Files of chat requests: what is read, and what is refused before a model is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalguard.core.chat import DEFAULT_TOKENS, read_chat_document, read_chat_request
from evalguard.errors import UsageError
from evalguard.harness.scored_answers import requested_documents
from evalguard.harness.task_options import TaskOptions, read_chat_file
from evalguard.harness.tasks import load_tasks

SAY = {"role": "user", "content": "Weather in Paris?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "calls.jsonl"
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_a_line_is_a_request_or_one_of_a_batch_file(tmp_path: Path) -> None:
    body = {"model": "gpt", "messages": [SAY], "tools": [TOOL], "max_completion_tokens": 7}
    batch = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": body}
    plain = {"id": "p", **body}
    found = read_chat_file(write(tmp_path, plain, "", batch))
    assert found.name == "calls"
    assert [one.name for one in found.requests] == ["p", "b"]
    one, other = found.requests
    assert one.arguments == other.arguments
    assert one.tools == (TOOL,)
    assert "model" not in one.document  # every line is asked of the model that is compared


def test_a_request_is_greedy_and_bounded_unless_it_says_otherwise(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"messages": [SAY]},
        {"messages": [SAY], "temperature": 0.7, "top_p": 0.9, "max_tokens": 5, "stop": "\n"},
    )
    usual, own = (one.arguments[1] for one in read_chat_file(path).requests)
    assert usual == {
        "max_gen_toks": DEFAULT_TOKENS,
        "until": [],
        "temperature": 0.0,
        "do_sample": False,
        "chat": {},
    }
    assert own == {
        "max_gen_toks": 5,
        "until": ["\n"],
        "temperature": 0.7,
        "top_p": 0.9,
        "do_sample": True,
        "chat": {},
    }


def test_what_a_server_may_know_is_kept(tmp_path: Path) -> None:
    given = {"messages": [SAY], "seed": 3, "chat_template_kwargs": {"enable_thinking": False}}
    (one,) = read_chat_file(write(tmp_path, given)).requests
    assert one.arguments[1]["chat"] == {
        "seed": 3,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert one.template_options == {"enable_thinking": False}
    assert one.unmet == ()


def test_arguments_say_what_they_were_made_of(tmp_path: Path) -> None:
    history = [
        {"content": "c", "role": "system"},
        SAY,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "18"},
    ]
    given = {"messages": history, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 9}
    (one,) = read_chat_file(write(tmp_path, given)).requests
    assert one.arguments[0].startswith('[{"role": "system"')  # by which a conversation is known
    again = read_chat_request(one.arguments)
    assert again is not None
    assert (again.messages, again.tools, again.tool_choice) == (one.messages, one.tools, "auto")
    assert read_chat_request(("text", {"until": ["\n"]})) is None


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        (None, ["get_weather", "other"]),
        ("required", ["get_weather", "other"]),
        ("none", []),
        ({"type": "function", "function": {"name": "other"}}, ["other"]),
    ],
)
def test_tool_choice_says_which_tools_are_offered(
    tmp_path: Path, choice: Any, offered: list[str]
) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    given = {"messages": [SAY], "tools": [TOOL, other], "tool_choice": choice}
    (one,) = read_chat_file(write(tmp_path, given)).requests
    names = [tool["function"]["name"] for tool in one.offered]  # type: ignore[index, call-overload]
    assert names == offered


def with_tool(**function: Any) -> dict[str, Any]:
    return {"messages": [SAY], "tools": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"message": [SAY]}, "it has no messages; did you mean 'message'?"),
        ({"messages": []}, "its messages are empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "there is no role 'robot'"),
        ({"messages": [{"role": "user"}]}, "messages[0]: it has no content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "it has no content"),
        ({"messages": [SAY, {"role": "tool", "content": "x"}]}, "messages[1]: a message of role"),
        ({"messages": [SAY], "tools": {}}, "its tools are an object, not a list"),
        ({"messages": [SAY], "tools": [{"type": "browser"}]}, "tools[0]: it is no function"),
        (with_tool(parameters=SCHEMA), "its function has no name"),
        (with_tool(name="f", parameters={"type": "strin"}), "it is no valid JSON schema"),
        (with_tool(name="f", parameters=[1]), "a JSON schema is an object, and this is a list"),
        ({"messages": [SAY], "tools": [TOOL, TOOL]}, "there are two functions 'get_weather'"),
        ({"messages": [SAY], "functions": []}, "'functions' is no longer OpenAI's word"),
        ({"messages": [SAY], "tool_choice": "auto"}, "it has a tool_choice and no tools"),
        ({"messages": [SAY], "tools": [TOOL], "tool_choice": "always"}, "tool_choice 'always'"),
        (
            {"messages": [SAY], "tools": [TOOL], "tool_choice": {"function": {"name": "get"}}},
            "tool_choice names 'get'",
        ),
        ({"messages": [SAY], "response_format": "json"}, "its response_format is none"),
        (
            {"messages": [SAY], "response_format": {"type": "json_schema", "json_schema": {}}},
            "has no json_schema",
        ),
        ({"messages": [SAY], "max_tokens": 0}, "max_tokens 0 is no number of tokens"),
        ({"messages": [SAY], "temperature": "0"}, "temperature '0' is no number"),
        ({"messages": [SAY], "n": 2}, "n is 2: a request has one answer here"),
        ({"messages": [SAY], "stop": [1]}, "stop is no text"),
        ({"url": "/v1/embeddings", "body": {"input": "x"}}, "it asks /v1/embeddings"),
        ([SAY], "it is a list, not a request"),
        ("{", "it is not JSON"),
        ('{"messages": NaN}', "NaN is no number of JSON"),
        ('{"messages": "\\ud800"}', "it is not UTF-8"),
        ("[" * 200_000, "it is not JSON"),
    ],
)
def test_what_is_no_request_is_refused_with_its_line(tmp_path: Path, line: Any, told: str) -> None:
    path = write(tmp_path, {"messages": [SAY]}, line)
    with pytest.raises(UsageError) as error:
        read_chat_file(path)
    assert f"{path}, line 2" in str(error.value)
    assert told in str(error.value)


def test_images_are_refused_in_words(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    path = write(tmp_path, {"messages": [{"role": "user", "content": [part]}]})
    with pytest.raises(UsageError, match="a part of type 'image_url': only texts can be asked"):
        read_chat_file(path)
    text = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert read_chat_file(write(tmp_path, {"messages": [text]})).requests[0].messages == (text,)


@pytest.mark.parametrize("lines", [(), ("", "  ")])
def test_an_empty_file_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="holds no request"):
        read_chat_file(write(tmp_path, *lines))


def test_ids_are_those_of_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, *[{"id": "a", "messages": [SAY]}] * 2)
    with pytest.raises(UsageError, match="line 2: 'a' is the id of line 1 too"):
        read_chat_file(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_chat_file(path)


def test_a_file_is_a_task_of_one_document_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [SAY]}, {"messages": [SAY], "tools": [TOOL]})
    found = read_chat_file(path)
    options = TaskOptions(chats={found.name: found}, gen_kwargs={"max_tokens": 3})
    (task,) = load_tasks(["calls"], options=options).names
    requests = load_tasks(["calls"], options=options).requests(task)
    assert requests.n_documents == 2
    assert {one.kind for one in requests.requests} == {"generate_until"}
    assert all(one.arguments[1]["max_tokens"] == 3 for one in requests.requests)  # type: ignore[index, call-overload]
    plain, with_tools = requested_documents(requests)
    assert plain.prompt_hash == with_tools.prompt_hash  # the conversation
    assert plain.doc_hash != with_tools.doc_hash  # all of the request
    first = load_tasks(["calls"], options=TaskOptions(chats={found.name: found}, limit=1))
    assert first.requests("calls").n_documents == 1


def test_a_document_says_which_request_it_is_of(tmp_path: Path) -> None:
    given = {"id": "a", "messages": [SAY], "tools": [TOOL], "tool_choice": "required", "seed": 3}
    found = read_chat_file(write(tmp_path, given))
    (document,) = (
        load_tasks(["calls"], options=TaskOptions(chats={"calls": found}))
        .requests("calls")
        .documents.values()
    )
    again = read_chat_document(json.loads(json.dumps(document)))
    assert again == found.requests[0]
    assert read_chat_document({"question": "x", "messages": []}) is None
