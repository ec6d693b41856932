"""llama.cpp's own server reads tool calls: a GGUF file beside the checkpoint that it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_models import save_chat_model, teach_replies

from evalguard.comparison.compare import compare

pytestmark = [pytest.mark.systems, pytest.mark.nightly]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


def test_both_call_the_same_tools(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_chat_model(tmp_path / "model")
    said = {
        "Paris?": '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        "Oslo?": '<tool_call>{"name": "get_weather", "arguments": {"city": 3}}</tool_call>',
        "Bonn?": "It is warm.",
    }
    talks = {text: [{"role": "user", "content": text}] for text in said}
    teach_replies(folder, said, tools=[TOOL])
    lines = [{"messages": talk, "tools": [TOOL], "max_tokens": 90} for talk in talks.values()]
    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["python", "-m", "evalguard.recipes.llama_server", "--model", "{build}"]
    server = {
        "model": "local-chat-completions",
        "requirements": ["xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors", "numpy"],
        "build": {
            "call": "evalguard.recipes.gguf:convert",
            "output": "model.gguf",
            "inputs": {"source": str(folder), "type": "F32"},
        },
        "serve": {
            "command": [*command, "--port", "{port}"],
            "url": "http://127.0.0.1:{port}/v1/chat/completions",
            "ready": "/health",
        },
    }
    models = {"here": {"model_args": {"pretrained": str(folder), "dtype": "float32"}}}
    guard = {"models": {**models, "there": server}, "requests": "calls.jsonl"}
    (tmp_path / "guard.yaml").write_text(yaml.safe_dump(guard))
    result = compare(
        "here", "there", config=tmp_path / "guard.yaml", cache_dir=cache_dir, quiet=True,
        bisect="never",
    )  # fmt: skip
    found = {one.metric: (one.base, one.candidate) for one in result.report.comparisons}
    assert found["tool_call"] == (2 / 3, 2 / 3)
    # The server writes by a grammar of the tool's schema; nothing holds the checkpoint to it.
    assert found["valid_tool_call"] == (2 / 3, 1.0)
    assert found["cut"] == (0.0, 0.0)
