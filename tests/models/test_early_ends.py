"""A text may end early, where a request says that its question is answered then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lm_requests import CONTEXTS
from opened_models import open_hf
from tiny_models import save_llama, save_t5
from transformers import AutoModelForCausalLM

from evalguard.core.loops import END_AT, find_loop
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError

MOST = 40
TEXTS = [" ".join(text.split()[: 3 + 2 * n]) for n, text in enumerate(t for t in CONTEXTS if t)]


def requests(rules: Sequence[Mapping[str, Value] | None]) -> list[Request]:
    found = []
    for doc_id, (text, rule) in enumerate(zip(TEXTS, rules, strict=True)):
        options: dict[str, Value] = {"until": ["\n\n\n"], "max_gen_toks": MOST}
        if rule is not None:
            options[END_AT] = dict(rule)
        found.append(
            Request(
                task="g", doc_id=doc_id, index=0, kind="generate_until", arguments=(text, options)
            )
        )
    return found


def answers(
    folder: Path, batch_size: int, rules: Sequence[Mapping[str, Value] | None], **more: str
) -> list[Response]:
    policy = ScoringPolicy(batch_size=batch_size, device="cpu")
    return open_hf(folder, policy, **more).score(requests(rules))


def ids_of(answer: Response) -> list[int]:
    assert answer.generated is not None
    ids: list[int] = answer.generated.ids.tolist()
    return ids


def is_beginning(ended: Response, whole: Response) -> bool:
    """Whether the ended answer is the beginning of the whole one, in tokens, margins and text."""
    one, other = ended.generated, whole.generated
    return (
        one is not None
        and other is not None
        and (whole.text or "").startswith(ended.text or "")
        and np.array_equal(one.ids, other.ids[: len(one)])
        and np.allclose(one.margins, other.margins[: len(one)], rtol=1e-4, atol=2e-5)
    )


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("backend", ["causal", "seq2seq"])
def test_each_text_ends_at_the_first_token_that_is_another_than_it_was_to_be(
    tiny_llama: Path, tmp_path: Path, batch_size: int, backend: str
) -> None:
    folder = tiny_llama if backend == "causal" else save_t5(tmp_path)
    more = {"backend": backend}
    whole = answers(folder, batch_size, [None] * len(TEXTS), **more)
    rules: list[Mapping[str, Value] | None] = []
    expected = []
    for number, answer in enumerate(whole):
        ids = ids_of(answer)
        changed = min(3 * number, len(ids) - 1)
        other = [*ids[:changed], (ids[changed] + 1) % 100, *ids[changed + 1 :]]
        rules.append({"other_than": other} if number != 1 else None)
        expected.append(changed + 1 if number != 1 else len(ids))
    ended = answers(folder, batch_size, rules, **more)
    assert [len(ids_of(answer)) for answer in ended] == expected
    for answer, full in zip(ended, whole, strict=True):
        assert is_beginning(answer, full)
    assert ended[1].text == whole[1].text
    if backend == "causal":
        assert [answer.ended for answer in ended] == [
            "" if len(ids_of(answer)) < len(ids_of(full)) else full.ended
            for answer, full in zip(ended, whole, strict=True)
        ]


def test_a_text_that_never_differs_is_the_whole_one(tiny_llama: Path) -> None:
    whole = answers(tiny_llama, 8, [None] * len(TEXTS))
    rules = [{"other_than": ids_of(answer)} for answer in whole]
    again = answers(tiny_llama, 8, rules)  # type: ignore[arg-type]
    for answer, full in zip(again, whole, strict=True):
        assert (answer.text, answer.ended) == (full.text, full.ended)
        assert answer.generated == full.generated


def test_a_token_beyond_those_that_were_to_be_is_another_one(tiny_llama: Path) -> None:
    whole = answers(tiny_llama, 8, [None] * len(TEXTS))
    short = [{"other_than": ids_of(answer)[:4]} for answer in whole]
    ended = answers(tiny_llama, 8, short)  # type: ignore[arg-type]
    assert [len(ids_of(answer)) for answer in ended] == [5] * len(TEXTS)


def test_the_next_requests_end_as_they_always_did(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, ScoringPolicy(batch_size=8, device="cpu"))
    whole = model.score(requests([None] * len(TEXTS)))
    model.score(requests([{"other_than": []}] * len(TEXTS)))
    again = model.score(requests([None] * len(TEXTS)))
    assert [answer.text for answer in again] == [answer.text for answer in whole]


@pytest.mark.parametrize(
    "rule", [{"loops": True}, {"other_than": "ab"}, {"other_than": ["a"]}, {"loop": 1}, {}]
)
def test_what_is_no_rule_is_refused(tiny_llama: Path, rule: Mapping[str, Value]) -> None:
    with pytest.raises(EvaluationError, match=END_AT):
        answers(tiny_llama, 8, [rule] * len(TEXTS))


LONG = 300


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose next token follows from the last one alone: sooner or later it goes round."""
    folder = save_llama(tmp_path_factory.mktemp("looping"), max_length=512, tied=False)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        model.lm_head.weight[model.config.eos_token_id] = 0.0  # never the most probable
    model.save_pretrained(folder)
    return folder


def long_requests(*rules: Mapping[str, Value] | None) -> list[Request]:
    given = requests([*rules, *[None] * (len(TEXTS) - len(rules))])[: len(rules)]
    return [
        replace(one, arguments=(one.arguments[0], {**one.arguments[1], "max_gen_toks": LONG}))  # type: ignore[dict-item]
        for one in given
    ]


@pytest.mark.parametrize(("batch_size", "texts"), [(1, 1), (8, 4)])
def test_a_text_that_loops_ends_there_and_its_figure_is_that_of_the_whole_one(
    looping: Path, batch_size: int, texts: int
) -> None:
    model = open_hf(looping, ScoringPolicy(batch_size=batch_size, device="cpu"))
    whole = model.score(long_requests(*[None] * texts))
    # One text of several has no rule: it is written to its end beside those that are over.
    rules = [{"loop": True}] * max(1, texts - 1) + [None] * (texts - max(1, texts - 1))
    ended = model.score(long_requests(*rules))  # type: ignore[arg-type]
    for answer, full, rule in zip(ended, whole, rules, strict=True):
        assert is_beginning(answer, full)
        assert find_loop(full.text or "", full.ended) is not None
        assert find_loop(answer.text or "", answer.ended) is not None
        if rule is None:
            assert answer.text == full.text
        else:
            assert len(ids_of(answer)) < len(ids_of(full))
            assert answer.ended == ""
