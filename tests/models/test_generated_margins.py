"""Generated tokens and their margins are those that transformers' own scores tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_requests import CONTEXTS
from opened_models import open_hf
from tiny_models import save_t5
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationMixin,
    LlamaForCausalLM,
)

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.core.shown_tokens import GeneratedTokens

MOST = 10
TEXTS = [" ".join(text.split()[: 3 + 2 * n]) for n, text in enumerate(t for t in CONTEXTS if t)]


def generations(until: Sequence[str] = (), **more: Any) -> list[Request]:
    options = {"until": [*until], "max_gen_toks": MOST, **more}
    return [
        Request(task="g", doc_id=i, index=0, kind="generate_until", arguments=(text, dict(options)))
        for i, text in enumerate(TEXTS)
    ]


def answers(folder: Path, batch_size: int, requests: list[Request], **more: Any) -> list[Response]:
    return open_hf(folder, ScoringPolicy(batch_size=batch_size, device="cpu"), **more).score(
        requests
    )


def told_by_transformers(folder: Path, text: str, **options: Any) -> GeneratedTokens:
    """What one text alone is generated as, by ``output_scores``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    made = model.generate(
        ids,
        max_new_tokens=MOST,
        pad_token_id=1,
        output_scores=True,
        return_dict_in_generate=True,
        **{"do_sample": False, **options},
    )
    return of_scores(made.sequences[0, ids.shape[1] :], [one[0] for one in made.scores])


def of_scores(tokens: torch.Tensor, scores: Sequence[torch.Tensor]) -> GeneratedTokens:
    margins, others = [], []
    for token, row in zip(tokens.tolist(), scores, strict=True):
        logprobs = torch.log_softmax(row, 0)
        own = logprobs[token].item()
        logprobs[token] = -torch.inf
        others.append(int(logprobs.argmax()))
        margins.append(own - logprobs.max().item())
    return GeneratedTokens.of(tokens.tolist(), margins, others)


def same(found: GeneratedTokens | None, expected: GeneratedTokens) -> bool:
    return (
        found is not None
        and np.array_equal(found.ids, expected.ids)
        and np.array_equal(found.others, expected.others)
        and np.allclose(found.margins, expected.margins, rtol=1e-4, atol=2e-5)
    )


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 1}])
def test_margins_are_of_the_distribution_that_the_token_was_chosen_from(
    tiny_llama: Path, batch_size: int, options: dict[str, Any]
) -> None:
    found = answers(tiny_llama, batch_size, generations(**options))
    for answer, text in zip(found, TEXTS, strict=True):
        assert same(answer.generated, told_by_transformers(tiny_llama, text, **options))


def test_a_stopped_text_has_the_tokens_that_it_has_alone_and_no_others(tiny_llama: Path) -> None:
    free = answers(tiny_llama, 1, generations())
    letters = sorted({one for answer in free for one in answer.text or "" if one.isalpha()})
    stop = next(one for one in letters if 1 < sum(one in (a.text or "") for a in free) < len(free))
    alone = answers(tiny_llama, 1, generations([stop]))
    together = answers(tiny_llama, 8, generations([stop]))
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    lengths = set()
    for one, other in zip(alone, together, strict=True):
        assert one.generated is not None
        assert same(other.generated, one.generated)
        ids = one.generated.ids.tolist()
        lengths.add(len(ids))
        assert stop not in tokenizer.decode(ids[:-1])
        assert (stop in tokenizer.decode(ids)) == (one.ended == "stop")
    assert len(lengths) > 1


def test_a_text_that_ends_itself_keeps_its_end_token_and_no_padding(tiny_llama: Path) -> None:
    free = answers(tiny_llama, 1, generations())
    end = int(free[0].generated.ids[4])  # type: ignore[union-attr]
    for batch_size in (1, 8):
        found = answers(tiny_llama, batch_size, generations(eos_token_id=end))
        for answer, whole in zip(found, free, strict=True):
            assert answer.generated is not None
            assert whole.generated is not None
            ids = whole.generated.ids.tolist()
            n = ids.index(end) + 1 if end in ids else MOST
            assert answer.generated.ids.tolist() == ids[:n]
            assert answer.ended == ("stop" if end in ids else "length")


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_sampled_token_has_a_margin_below_zero_where_another_was_more_probable(
    tiny_llama: Path, batch_size: int
) -> None:
    found = answers(tiny_llama, batch_size, generations(do_sample=True, temperature=2.0))
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    below = 0
    for answer, text in zip(found, TEXTS, strict=True):
        assert answer.generated is not None
        ids, made = tokenizer(text)["input_ids"], answer.generated.ids.tolist()
        with torch.no_grad():
            logits = model(torch.tensor([ids + made])).logits[0]
        rows = logits[len(ids) - 1 : len(ids) - 1 + len(made)]
        assert same(answer.generated, of_scores(torch.tensor(made), list(rows)))
        below += int((answer.generated.margins < 0).sum())
    assert below > 0


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_beams": 2, "do_sample": True}])
def test_a_beam_has_tokens_and_no_margins(tiny_llama: Path, options: dict[str, Any]) -> None:
    for answer in answers(tiny_llama, 2, generations(**options, temperature=1.0)):
        assert answer.generated is not None
        assert len(answer.generated) > 0
        assert np.isnan(answer.generated.margins).all()


def test_an_assisted_text_has_the_margins_of_a_plain_one(tiny_llama: Path) -> None:
    plain = answers(tiny_llama, 1, generations())
    assisted = answers(tiny_llama, 1, generations(prompt_lookup_num_tokens=3))
    for one, other in zip(plain, assisted, strict=True):
        assert one.generated is not None
        assert same(other.generated, one.generated)


def test_the_harness_path_keeps_the_same_record(tiny_llama: Path) -> None:
    fast = answers(tiny_llama, 8, generations())
    policy = ScoringPolicy(batch_size=8, device="cpu", scorer="harness")
    for one, other in zip(fast, open_hf(tiny_llama, policy).score(generations()), strict=True):
        assert one.generated is not None
        assert same(other.generated, one.generated)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_an_encoder_decoder_keeps_what_its_decoder_wrote(tmp_path: Path, batch_size: int) -> None:
    folder = save_t5(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    found = answers(folder, batch_size, generations(), backend="seq2seq")
    lengths = []
    for answer, text in zip(found, TEXTS, strict=True):
        assert answer.generated is not None
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        made = model.generate(
            ids,
            max_new_tokens=len(answer.generated),
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
        expected = of_scores(made.sequences[0, 1:], [one[0] for one in made.scores])
        assert same(answer.generated, expected)
        lengths.append(len(answer.generated))
    assert min(lengths) > 0


def test_a_model_that_generates_in_its_own_way_has_tokens_and_no_margins(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = answers(tiny_llama, 8, generations())

    def generate(self: LlamaForCausalLM, **options: Any) -> Any:
        assert "logits_processor" not in options  # which it might not know
        return GenerationMixin.generate(self, **options)

    monkeypatch.setattr(LlamaForCausalLM, "generate", generate)
    for one, other in zip(plain, answers(tiny_llama, 8, generations()), strict=True):
        assert one.generated is not None
        assert other.generated is not None
        assert np.array_equal(other.generated.ids, one.generated.ids)
        assert np.isnan(other.generated.margins).all()
