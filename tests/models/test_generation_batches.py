"""A text is generated in a batch as lm-eval generates it alone: HFLM's own batches change some."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_requests import CONTEXTS, lm_eval_answers
from opened_models import open_hf
from transformers import AutoModelForCausalLM, AutoTokenizer

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.models.hf.generation import TextEnds, count_generated, pad_after

POLICY = ScoringPolicy(batch_size=8, device="cpu")
MOST = 12


def generations(contexts: Sequence[str], until: Sequence[str]) -> list[Request]:
    options = {"until": list(until), "max_gen_toks": MOST}
    return [
        Request(task="g", doc_id=i, index=0, kind="generate_until", arguments=(text, dict(options)))
        for i, text in enumerate(contexts)
    ]


def in_a_batch(folder: Path, requests: Sequence[Request], **model_args: Any) -> list[str | None]:
    model = open_hf(folder, POLICY, **model_args)
    return [answer.text for answer in model.score(requests)]


def alone(folder: Path, requests: Sequence[Request], **model_args: Any) -> list[str]:
    return [lm_eval_answers(folder, [one], batch_size=1, **model_args)[0] for one in requests]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("add_bos", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_a_context_that_begins_with_bos_changes_no_other(
    tiny_llama: Path, first: int, add_bos: dict[str, bool]
) -> None:
    # the longest comes first in a batch, and HFLM looks at that one only
    contexts = [text for text in CONTEXTS[:4] if text]
    contexts = [*contexts, *(f"<s>{text}" for text in contexts)]
    contexts.append(("" if first else "<s>") + " ".join(contexts[:2]))
    requests = generations(contexts, ["\n"])
    assert in_a_batch(tiny_llama, requests, **add_bos) == alone(tiny_llama, requests, **add_bos)


@pytest.fixture
def with_markers(tiny_llama: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """A model two of whose generated tokens are special, as <|im_end|> is, and these tokens."""
    folder = shutil.copytree(tiny_llama, tmp_path / "markers")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    read = {token for text in CONTEXTS for token in tokenizer(text)["input_ids"]}
    markers: list[str] = []
    for text in CONTEXTS[:2]:
        given = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**given, max_new_tokens=MOST, do_sample=False, pad_token_id=1)[0]
        written = ids[given["input_ids"].shape[1] :].tolist()
        marker = next(token for token in written[2:-3] if token not in read)
        markers.append(tokenizer.convert_ids_to_tokens(marker))
    tokenizer.add_special_tokens({"additional_special_tokens": markers})
    tokenizer.save_pretrained(folder)
    return folder, [tokenizer.decode(tokenizer.convert_tokens_to_ids(one)) for one in markers]


def test_a_stop_string_that_is_a_special_token_ends_a_text_though_others_go_on(
    with_markers: tuple[Path, list[str]],
) -> None:
    folder, markers = with_markers
    requests = generations([text for text in CONTEXTS if text], markers)
    expected = alone(folder, requests)
    assert in_a_batch(folder, requests) == expected
    unstopped = alone(folder, [replace(one, arguments=(one.arguments[0], {"until": [],
        "max_gen_toks": MOST})) for one in requests])  # fmt: skip
    assert expected != unstopped


def test_what_holds_no_stop_string_is_left_as_it_is(tiny_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.pad_token = "</s>"
    ids = torch.tensor([tokenizer("Mara carried the lantern")["input_ids"]] * 2)
    whole = count_generated(ids, TextEnds(tokenizer=tokenizer, begin=1, stops=["boat"]))
    assert whole == [ids.shape[1] - 1] * 2
    assert torch.equal(pad_after(ids, 1, whole, tokenizer.pad_token_id), ids)
    lengths = count_generated(ids, TextEnds(tokenizer=tokenizer, begin=1, stops=["carried"]))
    ended = pad_after(ids, 1, lengths, tokenizer.pad_token_id)
    assert tokenizer.decode(ended[0], skip_special_tokens=True) == "Mara carried"
