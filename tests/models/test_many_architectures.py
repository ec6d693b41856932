"""Scores are lm-eval's on models, tokenizers and texts of many further kinds.

The reference is lm-eval's own HFLM at batch size 1. What it cannot score itself is left out: pairs
of which one side encodes to nothing (it asserts), and architectures that transformers cannot run
with a cache of keys alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import ARCHITECTURES, FURTHER, save_architecture
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_requests import CONTEXTS, pair_requests, rolling_requests
from numpy.typing import NDArray
from opened_models import OpenedScorer, open_hf
from tiny_models import TEXT
from tokenizer_kinds import KINDS, tokenizer_of

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.models.lm_scorer import LMScorer

pytestmark = pytest.mark.slow

POLICY = ScoringPolicy(batch_size=8, device="cpu", rolling_bos="lm-eval")
# Longer texts are cut from the left; some of the configs name no length, or a longer one.
LENGTH = 48
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
STRANGE_CONTEXTS = (
    "", "Mara", "Mara ", "Mara\n\n", "日本語のテキスト", "naïve café — “quoted”", "<s>Mara",
    "\U0001f469\u200d\U0001f467", "The keeper laughed" + " and the fog" * 30,
)  # fmt: skip
STRANGE_CONTINUATIONS = (
    " harbour", "x", " the boat came at last", "\n\nMara", "é 🙂", "\u00a0no-break", "</s>",
    " and \n",
)  # fmt: skip
STRANGE_TEXTS = (TEXT, "\n", " Mara", "<s>Mara", "日本語 🙂", "e\u0301 a\u200bb", "x" * 90)


def plain(folder: Path, **model_args: Any) -> HFLM:
    """lm-eval's own model, one request at a time, log-softmax in float32."""
    given = {"dtype": "float32", "batch_size": 1, "max_length": LENGTH, **model_args}
    return HFLM(str(folder), softmax_dtype="float32", device="cpu", logits_cache=False, **given)


def ours(folder: Path, **model_args: Any) -> OpenedScorer:
    return open_hf(folder, POLICY, **{"max_length": LENGTH, **model_args})


def answers(lm: HFLM, requests: Sequence[Request]) -> list[Any]:
    instances = [
        Instance(request_type=r.kind, doc={}, arguments=r.arguments, idx=r.index) for r in requests
    ]
    return list(getattr(lm, requests[0].kind)(instances, disable_tqdm=True))


def pairs(contexts: Sequence[str], continuations: Sequence[str]) -> list[Request]:
    return [
        Request(task="p", doc_id=doc, index=i, kind="loglikelihood", arguments=(before, after))
        for doc, before in enumerate(contexts)
        for i, after in enumerate(continuations)
    ]


def generations(contexts: Sequence[str]) -> list[Request]:
    # options that differ go into batches of their own
    options: list[dict[str, Any]] = [
        {"until": ["\n", "a"], "max_gen_toks": 8},
        {"until": [" the", "</s>"], "max_gen_toks": 6, "do_sample": False, "temperature": 0.0},
    ]
    return [
        Request(task="g", doc_id=doc, index=i, kind="generate_until", arguments=(text, dict(one)))
        for doc, text in enumerate(contexts)
        for i, one in enumerate(options)
        if text
    ]


def assert_same(model: LMScorer, reference: HFLM, *blocks: Sequence[Request]) -> None:
    for requests in blocks:
        found, expected = model.score(requests), answers(reference, requests)
        if requests[0].kind == "generate_until":
            assert [answer.text for answer in found] == expected
            continue
        if requests[0].kind == "loglikelihood":
            assert [a.is_greedy for a in found] == [greedy for _, greedy in expected]
            expected = [size for size, _ in expected]
        sizes = np.array([a.loglikelihood for a in found]), np.array(expected)
        assert (np.abs(sizes[0] - sizes[1]) <= 1e-4 + 1e-6 * np.abs(sizes[1])).all(), sizes


@pytest.mark.parametrize("name", [*FURTHER, "bloom: distances instead of positions",
    "mpt: biases of a length of their own"])  # fmt: skip
def test_an_architecture_scores_as_in_lm_eval(name: str, tmp_path: Path) -> None:
    assert name not in ARCHITECTURES  # test_architectures has those
    folder = save_architecture(tmp_path, name)
    model = ours(folder)
    assert model.describe().computation["scorer"] == "fast"
    blocks = (pair_requests(), rolling_requests(), generations(CONTEXTS))
    assert_same(model, plain(folder), *blocks)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "qwen2: biases", "starcoder2: a window"])
def test_attention_is_that_which_was_asked_for(name: str, attention: str, tmp_path: Path) -> None:
    folder = save_architecture(tmp_path, name)
    given = {"attn_implementation": attention}
    model, reference = ours(folder, **given), plain(folder, **given)
    assert model.lm.model.config._attn_implementation == attention
    assert_same(model, reference, pair_requests(), rolling_requests())


@pytest.mark.parametrize(
    "name",
    ["llama", "gemma2: soft caps", "qwen2: biases", "falcon: one key", "mamba2: chunks",
     "deepseek_v3: latent keys"],
)  # fmt: skip
def test_in_bfloat16_scores_are_as_near_the_true_ones_as_lm_evals(
    name: str, tmp_path: Path
) -> None:
    folder = save_architecture(tmp_path, name)
    requests = [*pair_requests(), *pairs([TEXT[:40], TEXT[40:90]], STRANGE_CONTINUATIONS[:3])]
    true = _likelihoods(answers(plain(folder), requests))
    narrow = {"dtype": "bfloat16"}
    found = np.array([a.loglikelihood for a in ours(folder, **narrow).score(requests)])
    reference = _likelihoods(answers(plain(folder, **narrow), requests))
    in_batches = _likelihoods(answers(plain(folder, **narrow, batch_size=8), requests))
    assert _size(reference - true) > 1e-3  # it is another dtype
    assert _size(found - true) < 1.5 * max(_size(reference - true), _size(in_batches - true))
    assert _size(found - reference) < 2 * _size(reference - true)


def _likelihoods(found: Sequence[tuple[float, bool]]) -> NDArray[np.float64]:
    return np.array([size for size, _ in found])


def _size(differences: NDArray[np.float64]) -> float:
    return float(np.sqrt((differences**2).mean()))


@pytest.fixture(params=KINDS)
def of_tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A llama whose tokenizer is of this kind, with a chat template."""
    tokenizer = tokenizer_of(request.param)
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    folder = save_architecture(tmp_path, "llama", **ids)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    tokenizer.chat_template = None  # others have it, too
    return folder


@pytest.mark.parametrize("add_bos", [None, True, False])
def test_texts_of_every_kind_score_as_in_lm_eval(of_tokenizer: Path, add_bos: bool | None) -> None:
    given = {} if add_bos is None else {"add_bos_token": add_bos}
    model, reference = ours(of_tokenizer, **given), plain(of_tokenizer, **given)
    requests = pairs(STRANGE_CONTEXTS, STRANGE_CONTINUATIONS)
    known = [request for request in requests if _encodes(reference, *request.arguments)]
    assert len(known) > 0.6 * len(requests)
    assert_same(model, reference, known, rolling_requests(STRANGE_TEXTS))
    assert_same(model, reference, generations([*STRANGE_CONTEXTS, "</s>", "<s>The boat"]))


def _encodes(lm: HFLM, context: str, continuation: str) -> bool:
    """Whether lm-eval can score a pair: both sides have a token."""
    if not context:
        return bool(lm.tok_encode(continuation, add_special_tokens=False))
    return all(lm._encode_pair(context, continuation))


@pytest.mark.parametrize("system", [False, True])
def test_a_conversation_is_put_to_the_model_as_by_lm_eval(of_tokenizer: Path, system: bool) -> None:
    messages = [{"role": "system", "content": "Answer briefly."}] if system else []
    messages.append({"role": "user", "content": "Who carried the lantern?"})
    model, reference = ours(of_tokenizer), plain(of_tokenizer)
    prompt = model.render_chat(messages, True)
    assert prompt == reference.apply_chat_template(messages)
    assert prompt.startswith("<s>")
    assert ("Answer briefly." in prompt) is system
    asked = pairs([prompt], [" Mara", " the keeper", "x"])
    known = [request for request in asked if _encodes(reference, *request.arguments)]
    assert known
    assert_same(model, reference, known, generations([prompt, "Mara"]))
