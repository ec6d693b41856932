"""Hyper-parameters as runtimes hold them: modules, configs, GGUF metadata, TransformerLens' cfg."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import save_gemma2
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
)

from evalguard.core.hyperparameters import ABSENT, HeldValue, compare_hyperparameters
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.hyperparameters_read import (
    name_activation,
    read_hyperparameter_file,
    read_model,
    read_named_values,
    rope_base,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gemma2(tmp_path_factory.mktemp("gemma"))


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def differing(base: list[HeldValue], candidate: list[HeldValue]) -> dict[str, tuple[Any, ...]]:
    rows = compare_hyperparameters(base, candidate)
    return {
        row.name: (row.base, row.candidate, row.where) for row in rows if row.verdict == "differs"
    }


def by_name(found: list[HeldValue]) -> dict[str, Any]:
    return {one.name: one.value for one in found if one.common}


def test_a_model_and_its_own_config_agree(folder: Path) -> None:
    rows = compare_hyperparameters(
        read_model(load(folder)), read_hyperparameter_file(folder / "config.json")
    )
    told = {row.name: row for row in rows}
    assert not [row for row in rows if row.verdict == "differs"]
    for name in ("norm_eps", "attention_scale", "attention_softcap", "final_softcap", "rope_theta"):
        assert told[name].verdict.startswith("equal"), name
    assert told["activation"].base == "gelu (tanh)"


def test_what_was_changed_in_the_loaded_model_is_named_with_its_module(folder: Path) -> None:
    candidate = load(folder)
    candidate.model.layers[1].self_attn.scaling *= 1.065
    candidate.model.layers[0].input_layernorm.eps = 1e-5
    candidate.model.layers[0].mlp.act_fn = torch.nn.SiLU()
    candidate.model.embed_tokens.embed_scale.fill_(5.5)
    candidate.config.final_logit_softcapping = None
    candidate.model.rotary_emb.inv_freq = 1.0 / 5000.0 ** (torch.arange(0, 8, 2) / 8)
    found = differing(read_model(load(folder)), read_model(candidate))
    scale = 8.0**-0.5
    assert found == {
        "attention_scale": (scale, pytest.approx(scale * 1.065), "model.layers.1.self_attn"),
        "norm_eps": (1e-6, 1e-5, "model.layers.0.input_layernorm"),
        "activation": ("gelu (tanh)", "silu", "model.layers.0.mlp.act_fn"),
        "embedding_scale": (pytest.approx(32**0.5), 5.5, "model.embed_tokens"),
        "final_softcap": (30.0, ABSENT, ""),
        "rope_theta": (10000.0, 5000.0, "model.rotary_emb"),
    }


def test_a_size_of_the_config_compares_though_a_module_spells_an_attribute_like_it(
    folder: Path,
) -> None:
    model = load(folder)
    model.model.layers[0].mlp.vocab_size = model.config.vocab_size
    model.model.layers[0].mlp.num_hidden_layers = model.config.num_hidden_layers
    sizes = ["hidden_size", "vocabulary", "layers", "mlp_size"]
    other = read_hyperparameter_file(folder / "config.json")
    rows = {row.name: row.verdict for row in compare_hyperparameters(read_model(model), other)}
    assert {name: rows[name] for name in sizes} == dict.fromkeys(sizes, "equal")


def test_a_norm_in_another_dtype_is_named(folder: Path) -> None:
    candidate = load(folder)
    candidate.model.norm.to(torch.bfloat16)
    assert differing(read_model(load(folder)), read_model(candidate)) == {
        "dtype": ("float32", "bfloat16", "model.norm")
    }


def test_encoders_and_learned_positions_are_read_too() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder = BertModel(BertConfig(**sizes, intermediate_size=48), add_pooling_layer=False)
    bert = by_name(read_model(encoder))
    assert (bert["norm_order"], bert["activation"], bert["norm_kind"]) == (
        "after", "gelu (erf)", "LayerNorm",
    )  # fmt: skip
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4))
    told = by_name(read_model(gpt2))
    assert (told["norm_order"], told["tied_embeddings"]) == ("before", True)
    assert told["activation"] == "gelu (tanh)"


@pytest.mark.parametrize("base", [10000.0, 4000.0, 500000.0])
def test_the_base_of_rotary_frequencies_is_read_off_them(base: float) -> None:
    plain = 1.0 / base ** (np.arange(0, 64, 2) / 64)
    assert rope_base(plain) == base
    assert rope_base(plain.astype(np.float32).astype(np.float64)) == base
    assert rope_base(np.where(plain < 0.1, plain / 8, plain)) is None


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 4.0},
        {"factor": 4.0, "attention_factor": 1.0},
        {"factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.2},
        {"factor": 4.0, "mscale": 0.7},
        {"factor": 1.0},
    ],
)
def test_the_factor_of_yarn_is_what_transformers_computes(scaling: dict[str, float]) -> None:
    """It shows where one config says it and the other leaves it to the default."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 64, **scaling
    }  # fmt: skip
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, rope_parameters=rope)
    _, expected = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    told = by_name(read_named_values({"rope_parameters": rope}))
    assert told["rope_attention_factor"] == pytest.approx(expected, rel=1e-12)


def test_transformer_lens_says_the_same_in_other_words() -> None:
    """TransformerLens #693: its attn_scale divides, and was sqrt(224) for 16."""
    cfg = SimpleNamespace(
        d_model=2048, d_head=256, d_vocab=100, n_heads=8, act_fn="gelu_pytorch_tanh", eps=1e-6,
        attn_scale=16.0, use_attn_scale=True, attn_scores_soft_cap=-1.0, rotary_base=10000,
        output_logits_soft_cap=30.0, normalization_type="RMSPre", attn_types=["global", "local"],
    )  # fmt: skip
    told = by_name(read_named_values(vars(cfg), prefix="cfg", lens=True))
    assert told["attention_scale"] == 1 / 16
    assert (told["attention_softcap"], told["final_softcap"]) == (ABSENT, 30.0)
    assert (told["norm_kind"], told["activation"]) == ("RMSNorm", "gelu (tanh)")
    huggingface = read_named_values(
        {
            "query_pre_attn_scalar": 224, "hidden_act": "gelu_new", "rms_norm_eps": 1e-6,
            "layer_types": ["full_attention", "sliding_attention"],
        }
    )  # fmt: skip
    found = differing(read_named_values(vars(cfg), lens=True), huggingface)
    assert found == {"attention_scale": (1 / 16, pytest.approx(224**-0.5), "")}


def test_gguf_metadata_are_read_without_the_name_of_the_architecture(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "gemma2")
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_embedding_length(32)
    writer.add_float32("gemma2.attn_logit_softcapping", 50.0)
    writer.add_bos_token_id(2)
    writer.add_add_bos_token(True)
    for name in ("token_embd", "blk.0.attn_norm", "blk.0.post_ffw_norm"):
        writer.add_tensor(f"{name}.weight", np.ones((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_hyperparameter_file(tmp_path / "a.gguf")
    told = by_name(found)
    assert told["norm_eps"] == float(np.float32(1e-6))
    (row,) = [
        row
        for row in compare_hyperparameters(read_named_values({"rms_norm_eps": 1e-6}), found)
        if row.name == "norm_eps"
    ]
    assert row.verdict == "equal as float32"
    assert (told["layers"], told["head_size"], told["bos_token_id"]) == (2, 8, 2)
    assert (told["tied_embeddings"], told["norm_order"]) == (True, "before and after")
    assert (told["puts_bos_first"], told["attention_softcap"]) == (True, 50.0)


NAMES = ("hidden_size", "num_attention_heads", "sliding_window", "layer_types", "eos_token_id",
         "query_pre_attn_scalar", "use_sliding_window", "hidden_act", "normalization_type",
         "rope_scaling", "text_config", "anything")  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=8,
)


@given(config=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_no_config_is_too_strange_to_be_read(config: dict[str, Any]) -> None:
    found = read_named_values(config)
    assert {one.verdict for one in compare_hyperparameters(found, found)} <= {"equal"}


def test_a_window_that_is_not_used_is_none() -> None:
    window = {"sliding_window": 4096, "use_sliding_window": False}
    assert by_name(read_named_values(window))["attention_window"] == "none"
    window["use_sliding_window"] = True
    assert by_name(read_named_values(window))["attention_window"] == 4096


def test_a_file_beside_activations_may_be_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "norm_eps: 1.0e-5\nrope: {rope_theta: 4000}\nactivation: gelu\n"
    )
    (tmp_path / "a.json").write_text(json.dumps({"layer_norm_eps": 1e-5, "rope_theta": 4000}))
    for name in ("a.yaml", "a.json"):
        told = by_name(read_hyperparameter_file(tmp_path / name))
        assert (told["norm_eps"], told["rope_theta"]) == (1e-5, 4000)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "{", "is no json"),
        ("a.yaml", "- 1", "holds a list"),
        ("a.yaml", "\ta: [", "is no yaml"),
        ("none.json", None, "cannot be read"),
    ],
)
def test_a_file_without_names_is_refused(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        read_hyperparameter_file(tmp_path / name)


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(8))
    with pytest.raises(EvaluationError, match="is GGUF of version 0, known are 2 and 3"):
        read_hyperparameter_file(tmp_path / "a.gguf")


def test_activations_have_one_name_in_all_libraries() -> None:
    for names in (
        ("gelu_new", "gelu_pytorch_tanh", "NewGELUActivation", "GELUTanh"),
        ("silu", "swish", "SiLUActivation", "SiLU"),
        ("gelu", "GELUActivation"),
    ):
        assert len({name_activation(name) for name in names}) == 1
    assert name_activation("my_own") == "my_own"
