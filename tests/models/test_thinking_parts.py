"""lm-eval cuts a closed thinking part off each text; that it was closed stays known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lm_requests import CONTEXTS
from opened_models import open_hf
from transformers import AutoTokenizer

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.models.generated_texts import record_endings

POLICY = ScoringPolicy(batch_size=8, device="cpu")
REQUESTS = [
    Request(
        task="g", doc_id=at, index=0, kind="generate_until",
        arguments=(" ".join(text.split()[:4]), {"until": ["\n\n\n"], "max_gen_toks": 8}),
    )
    for at, text in enumerate(text for text in CONTEXTS if text)
]  # fmt: skip


def free(folder: Path) -> list[str]:
    return [str(answer.text) for answer in open_hf(folder, POLICY).score(REQUESTS)]


def mark_of_some(texts: list[str]) -> str:
    """A letter that some of the texts have and others have not, in place of a mark."""
    letters = sorted({one for text in texts for one in text if one.isalpha()})
    return next(one for one in letters if 0 < sum(one in text for text in texts) < len(texts))


@pytest.mark.parametrize("as_token", [False, True])
def test_what_was_thought_stands_beside_a_text_whose_thinking_is_closed(
    tiny_llama: Path, as_token: bool
) -> None:
    texts = free(tiny_llama)
    mark = mark_of_some(texts)
    end: str | int = mark
    if as_token:
        tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
        shown = open_hf(tiny_llama, POLICY).score(REQUESTS)
        ids = [one.generated.ids.tolist() for one in shown if one.generated is not None]
        end = next(
            i for i in sorted({i for of in ids for i in of}) if sum(i in of for of in ids) == 1
        )
        assert tokenizer.decode([end])
    told = open_hf(tiny_llama, POLICY, think_end_token=end).score(REQUESTS)
    closed = [bool(one.message) for one in told]
    assert 0 < sum(closed) < len(closed)
    for text, one in zip(texts, told, strict=True):
        if not one.message:
            assert one.text == text.lstrip()  # as lm-eval gives it
            continue
        thought = json.loads(one.message)["reasoning_content"]
        assert one.text == text[len(text) - len(one.text or "") :]
        assert text.strip().startswith(thought)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": "<think>So it is.</think>\n4"}, ("4", "<think>So it is.")),
        ({"content": "<think>So it"}, ("<think>So it", "")),
        ({"content": "4", "reasoning_content": "So it is."}, ("4", "So it is.")),
    ],
)
def test_a_client_of_a_chat_endpoint_keeps_what_it_cuts_off(
    message: dict[str, str], expected: tuple[str, str]
) -> None:
    class Client:
        think_end_token = "</think>"

        def parse_generations(self, outputs: Any) -> list[str]:
            content = outputs["choices"][0]["message"]["content"]
            return [content.split(self.think_end_token)[-1].lstrip()]  # as lm-eval 0.4.13

    lm: Any = Client()
    with record_endings(lm):
        (text,) = lm.parse_generations(
            outputs={"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        )
    told = json.loads(text.message)
    assert (str(text), told.get("reasoning_content", "")) == expected


def test_a_model_that_names_no_end_of_thinking_says_nothing(tiny_llama: Path) -> None:
    assert {one.message for one in open_hf(tiny_llama, POLICY).score(REQUESTS)} == {""}
