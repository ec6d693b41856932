"""Tiny chat models with a template of our own, taught by heart to answer a few requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_models import save_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

# llama.cpp's own engine reads it too: no attributes of attributes in filters.
HERMES = (
    "{%- if tools %}tools:{% for t in tools %} {{ t.function.name }}{% endfor %}; write "
    '<tool_call>{"name": ..., "arguments": ...}</tool_call>\n{% endif %}'
    "{%- for m in messages %}{{ m.role }}: {{ m.content }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>"
    "{%- endfor %}\n{% endfor %}"
    "{%- if add_generation_prompt %}assistant: {% endif %}"
)
WITHOUT_TOOLS = (
    "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{%- if add_generation_prompt %}assistant: {% endif %}"
)


def save_chat_model(folder: Path, template: str | None = HERMES, **changes: Any) -> Path:
    """Save a tiny Llama with random weights and this chat template."""
    save_llama(folder, max_length=512, **changes)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool_call>", "</tool_call>"]})
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    return folder


def render(folder: Path, *messages: Any, tools: Any = None) -> str:
    """A prompt, by the template of a saved model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return str(
        tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=True
        )
    )


def teach_replies(folder: Path, replies: Mapping[str, str], *, tools: Any) -> Path:
    """Teach a saved model what it replies to these messages of a user beside these tools."""
    return teach(
        folder,
        {
            render(folder, {"role": "user", "content": text}, tools=tools): reply
            for text, reply in replies.items()
        },
    )


def teach(folder: Path, answers: Mapping[str, Any], *, steps: int = 150) -> Path:
    """Teach a saved model to write these answers after these prompts, word for word."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    rows = []
    for prompt, answer in answers.items():
        before = tokenizer(prompt)["input_ids"]
        after = tokenizer(answer, add_special_tokens=False)["input_ids"]
        rows.append((before, [*after, tokenizer.eos_token_id]))
    width = max(len(before) + len(after) for before, after in rows)
    ids, labels = (torch.full((len(rows), width), value) for value in (1, -100))
    for row, (before, after) in enumerate(rows):
        end = len(before) + len(after)
        ids[row, :end] = torch.tensor([*before, *after])
        labels[row, len(before) : end] = torch.tensor(after)
    steepest = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        steepest.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        steepest.step()
        if loss.item() < 0.002:
            break
    model.save_pretrained(folder)
    return folder
