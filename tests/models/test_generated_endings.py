"""A generated text says whether it ended by itself or at the token limit, where that is known."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lm_requests import CONTEXTS
from opened_models import open_hf
from transformers import AutoModelForCausalLM, AutoTokenizer

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.models.generated_texts import GeneratedText, record_endings
from evalguard.store.answer_table import block_from_bytes, block_to_bytes
from evalguard.worker.messages import RESPONSES

MOST = 8


def generations(until: list[str]) -> list[Request]:
    options = {"until": until, "max_gen_toks": MOST}
    return [
        Request(task="g", doc_id=i, index=0, kind="generate_until", arguments=(text, dict(options)))
        for i, text in enumerate(" ".join(text.split()[:4]) for text in CONTEXTS if text)
    ]


def token_counts(folder: Path, requests: list[Request], stop: str) -> list[int]:
    """Tokens that each context makes alone before ``stop`` or EOS, at most ``MOST``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    counts = []
    for request in requests:
        given = tokenizer(str(request.arguments[0]), return_tensors="pt")
        ids = given["input_ids"]
        made = model.generate(ids, max_new_tokens=MOST, do_sample=False, pad_token_id=1)[0]
        own = made[ids.shape[1] :].tolist()
        ends = [n for n in range(len(own)) if stop in tokenizer.decode(own[: n + 1])]
        ends += [n for n, token in enumerate(own) if token == tokenizer.eos_token_id]
        counts.append(min(ends, default=MOST))
    return counts


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_text_was_cut_where_it_has_as_many_tokens_as_allowed_and_no_end(
    tiny_llama: Path, batch_size: int
) -> None:
    model = open_hf(tiny_llama, ScoringPolicy(batch_size=batch_size, device="cpu"))
    free = model.score(generations(["\n\n\n"]))
    # a letter that some of the texts have and others have not
    letters = {one for answer in free for one in answer.text or ""}
    stop = next(
        one
        for one in sorted(letters)
        if one.isalpha() and 1 < sum(one in (answer.text or "") for answer in free) < len(free)
    )
    for until, answers in (("\n\n\n", free), (stop, model.score(generations([stop])))):
        counts = token_counts(tiny_llama, generations([until]), until)
        expected = ["length" if count == MOST else "stop" for count in counts]
        assert [answer.ended for answer in answers] == expected
    assert set(expected) == {"length", "stop"}


class Server:
    """A client of lm-eval's as far as its answers go: the texts, in the order of the choices."""

    def parse_generations(self, outputs: object, **_: object) -> list[str | None]:
        found = outputs if isinstance(outputs, list) else [outputs]
        if found and "choices" in found[0]:
            ordered = [sorted(one["choices"], key=lambda c: c["index"]) for one in found]
            return [choice["text"] for choices in ordered for choice in choices]
        return [one["text"] for one in found]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (
            {
                "choices": [
                    {"index": 1, "text": "b", "finish_reason": "length"},
                    {"index": 0, "text": "a", "finish_reason": "stop"},
                ]
            },
            ["stop", "length"],
        ),
        ({"choices": [{"index": 0, "text": "a"}]}, [""]),
        ({"choices": [{"index": 0, "text": "a", "finish_reason": "tool_calls"}]}, ["stop"]),
        ({"choices": [{"index": 0, "text": "a", "finish_reason": "content_filter"}]}, [""]),
        ([{"text": "a", "meta_info": {"finish_reason": {"type": "length"}}}], ["length"]),
        ([{"text": "a", "meta_info": {}}, {"text": "b"}], ["", ""]),
        ({"choices": [{"index": 0, "text": None, "finish_reason": "length"}]}, [""]),
    ],
)
def test_a_server_says_why_a_text_ended(outputs: object, expected: list[str]) -> None:
    server = Server()
    with record_endings(server):
        texts = server.parse_generations(outputs=outputs)
    assert [GeneratedText.of(text).ended for text in texts] == expected
    plain = server.parse_generations(outputs)
    assert [GeneratedText.of(text).ended for text in plain] == [""] * len(texts)


def test_endings_are_kept_and_sent_and_a_block_without_any_is_as_it_always_was() -> None:
    plain = [Response(text="a"), Response(text="b")]
    known = [Response(text="a", ended="stop"), Response(text="b", ended="length")]
    for responses in (plain, known):
        data = bytes(block_to_bytes("key", "block", responses))
        assert block_from_bytes(data, "key", "block") == responses
        assert RESPONSES.decode(RESPONSES.encode(tuple(responses))) == tuple(responses)
    names = pq.read_schema(io.BytesIO(bytes(block_to_bytes("key", "block", plain)))).names
    assert "ended" not in names


def test_a_text_with_an_ending_is_that_text() -> None:
    text = GeneratedText("fog", "length")
    assert text == "fog"
    assert type(str(text)) is str
    assert type(text.strip()) is str
