"""Encoder-decoder models are traced with what lm-eval feeds their encoder and their decoder."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_t5, save_tokenizer
from transformers import BartConfig, BartForConditionalGeneration

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.sources import ModelSource
from evalguard.errors import UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.traced_sides import TracedSide, open_torch_side

POLICY = ScoringPolicy(threads=1, device="cpu")


def save_bart(folder: Path) -> Path:
    size = save_tokenizer(folder)
    config = BartConfig(
        vocab_size=size, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, init_std=0.3,
        max_position_embeddings=48, pad_token_id=1, bos_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(2)
    BartForConditionalGeneration(config).save_pretrained(folder)
    return folder


def variant_of(folder: Path) -> Variant:
    arguments = {"pretrained": str(folder), "dtype": "float32"}
    return Variant(name=folder.name, model="hf", model_args=arguments)


def opened(folder: Path, cache: Path) -> TracedSide:
    source = ModelSource(name=folder.name, variant=variant_of(folder))
    return open_torch_side(source, POLICY, cache_dir=cache)


def request(kind: str, *arguments: Any) -> Request:
    return Request(task="t", doc_id=0, index=0, kind=kind, arguments=arguments)


SCORED = [
    request("loglikelihood", "mara came to the", " boat early"),
    request("loglikelihood", "", "the fog"),
    request("loglikelihood", " ".join(["a boat"] * 40), " came"),
    request("loglikelihood_rolling", "mara came early"),
]


@pytest.mark.parametrize("save", [save_t5, save_bart])
@pytest.mark.parametrize("one", SCORED, ids=["pair", "no context", "too long", "whole text"])
def test_its_logits_at_the_traced_inputs_are_the_scores(
    save: Callable[[Path], Path], one: Request, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model")
    side = opened(folder, tmp_path)
    assert side.encode is not None
    inputs, was_cut = side.encode(one)
    assert was_cut == (len(str(one.arguments[0])) > 200)
    scorer = load_scorer(variant_of(folder), POLICY, cache_dir=tmp_path)
    assert isinstance(scorer, LMScorer)
    (answer,) = scorer.score([one])
    _, scored = scorer.encode_halves(one)
    assert side.module is not None
    with torch.no_grad():
        logits = side.module(**{name: torch.from_numpy(ids) for name, ids in inputs.items()}).logits
    found = logits[0].log_softmax(-1)[range(len(scored)), scored].sum()
    assert float(found) == pytest.approx(answer.loglikelihood, rel=1e-5)
    assert inputs["decoder_input_ids"].shape == (1, len(scored))
    assert side.token_texts(inputs) == (), "a position is one of the encoder, or of the decoder"


def test_of_a_prompt_the_decoder_reads_where_it_begins(tmp_path: Path) -> None:
    side = opened(save_t5(tmp_path / "model"), tmp_path)
    assert side.encode is not None
    inputs, _ = side.encode(request("generate_until", "mara came", {"until": ["."]}))
    assert inputs["decoder_input_ids"].tolist() == [[0]]


def test_of_a_long_text_the_first_window_is_traced(tmp_path: Path) -> None:
    folder = save_bart(tmp_path / "model")
    side = opened(folder, tmp_path)
    assert side.encode is not None
    text = " ".join(["mara came early"] * 40)
    inputs, was_cut = side.encode(request("loglikelihood_rolling", text))
    assert was_cut
    assert inputs["decoder_input_ids"].shape == (1, side.max_length)
    first, _ = side.encode(request("loglikelihood_rolling", text[:60]))
    begins = first["decoder_input_ids"][0, :8]
    assert np.array_equal(inputs["decoder_input_ids"][0, :8], begins)


def test_a_decoder_that_says_no_first_token_is_refused(tmp_path: Path) -> None:
    folder = save_bart(tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        told = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**told, "decoder_start_token_id": None}))
    side = opened(folder, tmp_path)
    assert side.encode is not None
    with pytest.raises(UsageError, match="does not say with which token its decoder begins"):
        side.encode(request("generate_until", "mara came", {"until": ["."]}))


def faults(model: Any) -> dict[str, tuple[str, Any]]:
    """The module that each fault is in, and its parameter."""
    decoder, encoder = model.model.decoder.layers, model.model.encoder.layers
    return {
        "model.encoder.layers.0.fc1": ("weight", encoder[0].fc1.weight),
        "model.decoder.layers.1.encoder_attn.v_proj": ("bias", decoder[1].encoder_attn.v_proj.bias),
        "model.decoder.layers.0.self_attn.q_proj": ("weight", decoder[0].self_attn.q_proj.weight),
    }


@pytest.mark.parametrize(
    "module",
    [
        "model.encoder.layers.0.fc1",
        "model.decoder.layers.1.encoder_attn.v_proj",
        "model.decoder.layers.0.self_attn.q_proj",
    ],
)
def test_a_fault_of_encoder_cross_attention_and_decoder_is_named(
    module: str, tmp_path: Path
) -> None:
    side = opened(save_bart(tmp_path / "model"), tmp_path)
    assert side.encode is not None
    sequences = [side.encode(one)[0] for one in SCORED]
    port = copy.deepcopy(side.module)
    assert port is not None
    kind, parameter = faults(port)[module]
    parameter.data += 0.5 if kind == "bias" else 0.5 * parameter.data
    assert side.module is not None
    (suspect,) = trace_models(side.module, port, sequences).suspects
    assert suspect.module == module
    assert "inf" not in str(suspect)
    assert trace_models(side.module, copy.deepcopy(side.module), sequences).suspects == ()
