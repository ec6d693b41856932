"""vLLM's server reads tool calls, without a GPU: figures of answers, a flag that spoils them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import save_chat_model, teach_replies
from system_models import Compare, named
from test_vllm import vllm_python

__all__ = ["vllm_python"]  # a fixture

pytestmark = [pytest.mark.systems, pytest.mark.nightly, pytest.mark.xdist_group("vllm")]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
CITIES = (
    "Paris", "Rome", "Lima", "Accra", "Delhi", "Quito", "Tunis", "Hanoi", "Kyiv", "Baku", "Riga",
    "Bern", "Cairo", "Dakar",
)  # fmt: skip
CALL = '<tool_call>{{"name": "get_weather", "arguments": {{"city": {city}}}}}</tool_call>'
SAID = {
    **{f"{city}?": CALL.format(city=json.dumps(city)) for city in CITIES},
    "Oslo?": CALL.format(city=3),
    "Bonn?": "It is warm.",
}
SETTINGS: dict[str, Any] = {
    "parser": {
        "reference": "hermes", "candidate": "pythonic", "target": "serve.tool-call-parser",
    },
    "seed": {"reference": 0, "candidate": 1, "target": "serve.seed"},
    "prefixes": {"reference": False, "candidate": True, "target": "serve.enable-prefix-caching"},
    "beside": {"reference": 16, "candidate": 4, "target": "serve.max-num-seqs"},
}  # fmt: skip


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows its answers by heart, of a head size that vLLM has on a CPU."""
    folder = save_chat_model(tmp_path_factory.mktemp("taught") / "model", head_dim=32)
    return teach_replies(folder, SAID, tools=[TOOL])


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """A guard file's requests: each text with the tool."""
    talks = [[{"role": "user", "content": text}] for text in SAID]
    lines = [{"messages": talk, "tools": [TOOL], "max_tokens": 90} for talk in talks]
    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"requests": "calls.jsonl"}


def serve(python: str, model: Path, *flags: str, **settings: Any) -> dict[str, Any]:
    return {
        "model": "local-chat-completions",
        "model_args": {"model": str(model), "num_concurrent": 2},
        "python": python,
        "serve": {
            "command": [
                "python", "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
                "--port", "{port}", "--host", "127.0.0.1", "--dtype", "float32",
                "--max-model-len", "512", "--enforce-eager", *flags,
            ],
            "url": "http://127.0.0.1:{port}/v1/chat/completions",
            "ready": "/health",
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        },
        "settings": settings,
    }  # fmt: skip


CALLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def figures(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {one["metric"]: (one["base"], one["candidate"]) for one in found["comparisons"]}


def test_of_four_flags_the_parser_that_loses_the_calls_is_named(
    compare: Compare, vllm_python: str, taught: Path, asked: dict[str, Any]
) -> None:
    here = {"model_args": {"pretrained": str(taught), "dtype": "float32"}}
    there = serve(vllm_python, taught, *CALLS, **SETTINGS)
    words = ("--gate-metric", "valid_tool_call=80%", "--bisect", "always")
    found = compare({"here": here, "there": there}, *words, code=1, **asked)
    shown = figures(found)
    here_valid, there_valid = shown["valid_tool_call"]
    assert (here_valid, there_valid < 0.2) == (15 / 16, True)
    assert shown["cut"] == (0.0, 0.0)
    assert named(found) == {"parser"}


def test_a_server_that_reads_no_calls_is_an_error_with_its_words(
    compare: Compare, vllm_python: str, taught: Path, asked: dict[str, Any]
) -> None:
    here = {"model_args": {"pretrained": str(taught), "dtype": "float32"}}
    found = compare({"here": here, "there": serve(vllm_python, taught)}, code=3, **asked)
    assert "refuses requests with tools, and answers without" in found["error"]["message"]
    assert "--enable-auto-tool-choice" in str(found["error"]["quotes"])
