"""RWKV-7's files of BlinkDL's in the layout of flash-linear-attention.

``tests/systems`` loads what is written and holds its scores to rwkv-pip's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evalguard.errors import BuildError, UsageError
from evalguard.recipes.rwkv7 import convert

WIDTH, HEAD, RANK, LAYERS, VOCABULARY = 128, 64, 8, 2, 40


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """Names and shapes of BlinkDL's files."""
    shapes: dict[str, tuple[int, ...]] = {
        "emb.weight": (VOCABULARY, WIDTH), "head.weight": (VOCABULARY, WIDTH),
        "ln_out.weight": (WIDTH,), "ln_out.bias": (WIDTH,),
        "blocks.0.ln0.weight": (WIDTH,), "blocks.0.ln0.bias": (WIDTH,),
    }  # fmt: skip
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        for norm in ("ln1", "ln2", "att.ln_x"):
            shapes |= {f"{block}.{norm}.{kind}": (WIDTH,) for kind in ("weight", "bias")}
        for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a", "w0", "a0", "v0"):
            shapes[f"{block}.att.{name}"] = (1, 1, WIDTH)
        for name in "wavg":
            shapes |= {f"{block}.att.{name}1": (WIDTH, RANK), f"{block}.att.{name}2": (RANK, WIDTH)}
        shapes[f"{block}.att.r_k"] = (WIDTH // HEAD, HEAD)
        for name in ("receptance", "key", "value", "output"):
            shapes[f"{block}.att.{name}.weight"] = (WIDTH, WIDTH)
        shapes[f"{block}.ffn.x_k"] = (1, 1, WIDTH)
        shapes[f"{block}.ffn.key.weight"] = (4 * WIDTH, WIDTH)
        shapes[f"{block}.ffn.value.weight"] = (WIDTH, 4 * WIDTH)
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "README.md").write_text("not a tokenizer", encoding="utf-8")
    return folder


def convert_weights(folder: Path, weights: dict[str, torch.Tensor], **given: Any) -> Path:
    file = folder / "rwkv7.pth"
    torch.save(weights, file)
    output = folder / "fla"
    convert(output, str(file), **given)
    return output


def test_every_tensor_is_there_under_flas_name_and_in_its_shape(
    tmp_path: Path, weights: dict[str, torch.Tensor], tokenizer: Path
) -> None:
    output = convert_weights(tmp_path, weights, tokenizer=str(tokenizer))
    found = load_file(output / "model.safetensors")
    unused = {f"blocks.0.att.v{number}" for number in range(3)}
    assert len(found) == len(weights.keys() - unused)
    expected = {
        "model.embeddings.weight": weights["emb.weight"],
        "model.layers.0.pre_norm.bias": weights["blocks.0.ln0.bias"],
        "model.layers.1.attn.g_norm.weight": weights["blocks.1.att.ln_x.weight"],
        "model.layers.1.attn.x_r": weights["blocks.1.att.x_r"],
        "model.layers.1.attn.k_k": weights["blocks.1.att.k_k"].flatten(),
        "model.layers.1.attn.v_lora.lora.2.bias": weights["blocks.1.att.v0"].flatten(),
        "model.layers.1.attn.w_lora.lora.0.weight": weights["blocks.1.att.w1"].T,
        "model.layers.1.attn.g_lora.lora.2.weight": weights["blocks.1.att.g2"].T,
        "model.layers.0.ffn.x_k": weights["blocks.0.ffn.x_k"].flatten(),
        "model.layers.0.attn.r_proj.weight": weights["blocks.0.att.receptance.weight"],
    }
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    assert config["head_dim"] == HEAD
    assert config["num_hidden_layers"] == LAYERS
    assert config["gate_low_rank_dim"] == RANK
    # Those that fla's own script leaves in a file are another model's: 1 and 2.
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 0)
    assert sorted(file.name for file in output.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip


def test_the_dtype_is_of_every_tensor(
    tmp_path: Path, weights: dict[str, torch.Tensor], tokenizer: Path
) -> None:
    output = convert_weights(tmp_path, weights, tokenizer=str(tokenizer), dtype="bfloat16")
    found = load_file(output / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.1.att.time_decay": torch.ones(1)}, "has no tensor 'blocks.1.att.time_decay'"),
        ({"emb.weight": None}, "it has no 'emb.weight'"),
        ({"blocks.0.att.w1": None}, "it has no 'blocks.0.att.w1'"),
    ],
)
def test_another_checkpoint_is_refused(
    tmp_path: Path,
    weights: dict[str, torch.Tensor],
    tokenizer: Path,
    change: dict[str, torch.Tensor | None],
    message: str,
) -> None:
    changed = {k: v for k, v in (weights | change).items() if v is not None}
    with pytest.raises(BuildError, match=message):
        convert_weights(tmp_path, changed, tokenizer=str(tokenizer))


@pytest.mark.parametrize(("heads", "epsilon"), [(4, "0.00032"), (8, "0.00016"), (1, "0.00128")])
def test_heads_of_which_fla_has_another_epsilon_are_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], tokenizer: Path, heads: int, epsilon: str
) -> None:
    """A port that is off by 3e-8 nats a token, with heads of 32, and nothing said so."""
    for layer in range(LAYERS):
        weights[f"blocks.{layer}.att.r_k"] = torch.ones(heads, WIDTH // heads)
    with pytest.raises(BuildError, match=rf"heads of {WIDTH // heads}: .* {epsilon} \(head_dim"):
        convert_weights(tmp_path, weights, tokenizer=str(tokenizer))


def test_a_dtype_or_a_tokenizer_that_is_not_there_is_named(
    tmp_path: Path, weights: dict[str, torch.Tensor], tokenizer: Path
) -> None:
    with pytest.raises(UsageError, match="dtype 'bfloat61' is not known"):
        convert_weights(tmp_path, weights, tokenizer=str(tokenizer), dtype="bfloat61")
    with pytest.raises(UsageError, match="no tokenizer files in"):
        convert_weights(tmp_path, weights, tokenizer=str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="there is no file"):
        convert(tmp_path / "fla", str(tmp_path / "nothing.pth"), tokenizer=str(tokenizer))


def test_nothing_is_written_where_the_checkpoint_is_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], tokenizer: Path
) -> None:
    del weights["emb.weight"]
    with pytest.raises(BuildError):
        convert_weights(tmp_path, weights, tokenizer=str(tokenizer))
    assert not (tmp_path / "fla").exists()
