"""LoRA adapters folded into their base: the weights that PEFT would merge, made while reading."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from evalguard.errors import EvaluationError, UsageError
from evalguard.tensor_files.opening import open_tensors
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_report import TensorsReport

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
HEAD, EMBED = "lm_head", "model.embed_tokens"
SHAPES = {Q: (48, 32), K: (16, 32), HEAD: (64, 32), EMBED: (64, 32)}


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.1


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    weights = {f"{name}.weight": draw(n, *shape) for n, (name, shape) in enumerate(SHAPES.items())}
    save_file(weights, folder / "model.safetensors")
    return folder


def write_adapter(
    folder: Path, tensors: dict[str, torch.Tensor], base: str | Path = "", **told: Any
) -> Path:
    folder.mkdir()
    config = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": str(base),
        "target_modules": ["q_proj"], "bias": "none", "init_lora_weights": True, **told,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    named = {f"base_model.model.{name}": one.contiguous() for name, one in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder


def lora(module: str, rank: int = 4, seed: int = 50) -> dict[str, torch.Tensor]:
    rows, columns = SHAPES[module]
    return {
        f"{module}.lora_A.weight": draw(seed, rank, columns),
        f"{module}.lora_B.weight": draw(seed + 1, rows, rank),
    }


def delta(parts: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    a, b = (parts[f"{module}.lora_{one}.weight"].double() for one in "AB")
    return b @ a


def merged(base: Path, folder: Path, changes: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    weights = load_file(base / "model.safetensors")
    for module, change in changes.items():
        name = f"{module}.weight"
        weights[name] = (weights[name].double() + change).float()
    save_file(weights, folder / "model.safetensors")
    return folder


def compare(one: str | Path, other: str | Path) -> TensorsReport:
    return compare_tensors(str(one), str(other), TensorOptions())


@pytest.mark.parametrize(
    ("told", "scaling"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"rank_pattern": {r".*\.q_proj": 2}}, 4.0),
        ({"rank_pattern": {"self_attn.q_proj": 2}, "use_rslora": True}, 8 / math.sqrt(2)),
    ],
)
def test_a_merged_checkpoint_is_its_base_and_adapter(
    tmp_path: Path, base: Path, told: dict[str, Any], scaling: float
) -> None:
    parts = lora(Q, rank=2 if "rank_pattern" in told else 4)
    adapter = write_adapter(tmp_path / "adapter", parts, base, **told)
    whole = merged(base, tmp_path / "merged", {Q: scaling * delta(parts, Q)})
    report = compare(whole, adapter)
    assert report.exit_code == 0
    assert {one.name: one.state for one in report.deltas}[f"{Q}.weight"] != "beyond"
    assert compare(base, adapter).exit_code == 1
    other = merged(base, tmp_path / "other", {Q: 1.1 * scaling * delta(parts, Q)})
    assert compare(other, adapter).exit_code == 1


def test_both_can_be_named(tmp_path: Path, base: Path) -> None:
    parts = lora(Q)
    adapter = write_adapter(tmp_path / "adapter", parts, "nobody/here")
    whole = merged(base, tmp_path / "merged", {Q: 2.0 * delta(parts, Q)})
    assert compare(whole, f"{base}+{adapter}").exit_code == 0
    with pytest.raises(UsageError, match="names 'nobody/here', which is not here") as raised:
        compare(whole, adapter)
    assert raised.value.hint == f"name both: BASE+{adapter}"


def test_embeddings_and_transposed_layers_take_the_transpose(tmp_path: Path, base: Path) -> None:
    parts = {
        f"{EMBED}.lora_embedding_A": draw(1, 4, 64), f"{EMBED}.lora_embedding_B": draw(2, 32, 4)
    }  # fmt: skip
    adapter = write_adapter(tmp_path / "adapter", parts, base)
    change = (
        2.0
        * (
            parts[f"{EMBED}.lora_embedding_B"].double()
            @ parts[f"{EMBED}.lora_embedding_A"].double()
        ).T
    )
    assert compare(merged(base, tmp_path / "merged", {EMBED: change}), adapter).exit_code == 0
    turned = {f"{Q}.lora_A.weight": draw(3, 4, 48), f"{Q}.lora_B.weight": draw(4, 32, 4)}
    adapter = write_adapter(tmp_path / "turned", turned, base, fan_in_fan_out=True)
    whole = merged(base, tmp_path / "whole", {Q: 2.0 * delta(turned, Q).T})
    assert compare(whole, adapter).exit_code == 0


def test_an_embedding_that_is_saved_beside_its_adapter_stands_in_its_place(
    tmp_path: Path, base: Path
) -> None:
    own, parts = draw(8, 64, 32), {
        f"{EMBED}.lora_embedding_A": draw(1, 4, 64), f"{EMBED}.lora_embedding_B": draw(2, 32, 4)
    }  # fmt: skip
    saved = {**parts, f"{EMBED}.base_layer.weight": own}
    adapter = write_adapter(tmp_path / "adapter", saved, base)
    update = parts[f"{EMBED}.lora_embedding_B"] @ parts[f"{EMBED}.lora_embedding_A"]
    before = load_file(base / "model.safetensors")[f"{EMBED}.weight"]
    change = own.double() + 2.0 * update.T.double() - before.double()
    assert compare(merged(base, tmp_path / "merged", {EMBED: change}), adapter).exit_code == 0
    assert compare(base, adapter).exit_code == 1


def test_modules_that_were_trained_whole_stand_in_their_place(tmp_path: Path, base: Path) -> None:
    head, parts = draw(9, 64, 32), lora(K)
    adapter = write_adapter(
        tmp_path / "adapter", {**parts, f"{HEAD}.modules_to_save.weight": head}, base
    )
    own = load_file(base / "model.safetensors")[f"{HEAD}.weight"]
    changes = {K: 2.0 * delta(parts, K), HEAD: head.double() - own.double()}
    assert compare(merged(base, tmp_path / "merged", changes), adapter).exit_code == 0


def test_a_merge_in_bfloat16_is_a_rounding(tmp_path: Path, base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in weights.items()}, base / "model.safetensors")
    parts = lora(Q)
    adapter = write_adapter(tmp_path / "adapter", parts, base)
    whole = tmp_path / "merged"
    whole.mkdir()
    made = load_file(base / "model.safetensors")
    made[f"{Q}.weight"] += (2.0 * delta(parts, Q)).bfloat16()
    save_file(made, whole / "model.safetensors")
    assert compare(whole, adapter).exit_code == 0


def test_rows_are_made_as_they_are_read(tmp_path: Path, base: Path) -> None:
    parts = lora(Q)
    adapter = write_adapter(tmp_path / "adapter", parts, base)
    weight = load_file(base / "model.safetensors")[f"{Q}.weight"].double()
    expected = (weight + 2.0 * delta(parts, Q)).numpy()
    with open_tensors(adapter) as files:
        tensor = files.tensors[f"{Q}.weight"]
        np.testing.assert_allclose(tensor.load(), expected, rtol=1e-6)
        np.testing.assert_allclose(tensor.read(3 * 32, 5 * 32), expected[3:5].ravel(), rtol=1e-6)
        assert len(files.tensors) == len(SHAPES)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"use_dora": True}, "does not fold DoRA"),
        ({"peft_type": "LOHA"}, "adapters of kind LOHA are not folded"),
        ({"init_lora_weights": "pissa_niter_4"}, "moves a part of the base into the adapter"),
        ({"lora_bias": True}, "does not fold biases of B"),
        ({"r": 8}, "of rank 4 and 4, and its config says 8"),
    ],
)
def test_what_is_not_folded_is_unknown_and_not_different(
    tmp_path: Path, base: Path, told: dict[str, Any], said: str
) -> None:
    report = compare(base, write_adapter(tmp_path / "adapter", lora(Q), base, **told))
    (unknown,) = [one for one in report.deltas if one.state == "unreadable"]
    assert unknown.name == f"{Q}.weight"
    assert said in unknown.fault
    assert report.exit_code == 3


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (f"{Q}.lora_magnitude_vector", (48,), "does not know what"),
        (f"{Q}.lora_A.weight", (4, 31), "B A is [48, 31]"),
        (f"{Q}.lora_B.weight", None, "its lora_B is missing"),
        ("model.layers.9.mlp.lora_A.weight", (4, 32), "which the adapter changes"),
    ],
)
def test_parts_that_do_not_fit_are_faults_of_their_tensor(
    tmp_path: Path, base: Path, name: str, shape: tuple[int, ...] | None, said: str
) -> None:
    parts = lora(Q)
    if shape is None:
        del parts[name]
    else:
        parts[name] = draw(0, *shape)
    adapter = write_adapter(tmp_path / "adapter", parts, base)
    with open_tensors(adapter) as files:
        assert [said in one.fault for one in files.tensors.values() if one.fault] == [True]
    assert compare(base, adapter).exit_code in (1, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "has no peft_type"), ('{"peft_type": "LORA"}', "does not say its rank and alpha")],
)
def test_a_damaged_config_is_an_error(tmp_path: Path, base: Path, content: str, said: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", lora(Q), base)
    (adapter / "adapter_config.json").write_text(content)
    with pytest.raises(EvaluationError, match=said):
        open_tensors(adapter)


@pytest.mark.filterwarnings("ignore")
def test_peft_merges_the_same(tmp_path: Path, tiny_llama: Path) -> None:
    """Against PEFT's own merge_and_unload, where PEFT is installed."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "down_proj"],
        rank_pattern={"down_proj": 2}, alpha_pattern={"q_proj": 3}, init_lora_weights=False,
    )  # fmt: skip
    wrapped = peft.get_peft_model(model, config)
    wrapped.save_pretrained(tmp_path / "adapter")
    wrapped.merge_and_unload().save_pretrained(tmp_path / "merged")
    shutil.copytree(tiny_llama, tmp_path / "base")
    report = compare(tmp_path / "merged", f"{tmp_path / 'base'}+{tmp_path / 'adapter'}")
    assert report.exit_code == 0
    assert compare(tmp_path / "merged", tmp_path / "base").exit_code == 1


# How many times its update a merge holds

TWO = {**lora(Q, seed=60), **lora(K, seed=70)}
SMALL = 0.03  # of what `lora` draws: the update is 0.6% of the weights


def small_update(share: float = SMALL) -> dict[str, torch.Tensor]:
    return {name: share * one if "lora_B" in name else one for name, one in TWO.items()}


def merge(base: Path, folder: Path, factors: dict[str, float], dtype: torch.dtype) -> Path:
    """Write the base, and beside it what holds some times B A."""
    folder.mkdir()
    weights = {n: w.to(dtype) for n, w in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors")
    for module, factor in factors.items():
        change = factor * delta(small_update(), module)
        weights[f"{module}.weight"] = (weights[f"{module}.weight"].double() + change).to(dtype)
    save_file(weights, folder / "model.safetensors")
    return folder


RSLORA: dict[str, Any] = {"use_rslora": True}
PATTERN: dict[str, Any] = {"alpha_pattern": {"q_proj": 32}}
WRONG: dict[str, tuple[dict[str, Any], dict[str, float], str]] = {
    "not merged": ({}, {}, "by 0: nothing was merged, the weights are the base's"),
    "subtracted": ({}, {Q: -2.0, K: -2.0}, "by -1: merged with the opposite sign"),
    "as rsLoRA, or twice": (
        {}, {Q: 4.0, K: 4.0},
        "by 2: alpha / sqrt(r) (rsLoRA), where its config says alpha / r or merged twice or scaled "
        "twice",
    ),
    "rsLoRA by alpha / r": (
        RSLORA, {Q: 2.0, K: 2.0},
        "by 0.5: alpha / r, where its config says alpha / sqrt(r) (rsLoRA)",
    ),
    "without alpha and rank": (
        {"lora_alpha": 12}, {Q: 1.0, K: 1.0}, "by 0.3333: alpha and the rank were left out"
    ),
    "not divided": ({"lora_alpha": 64}, {Q: 64.0, K: 64.0}, "by 4: alpha was not divided"),
    "by no factor with a reason": ({}, {Q: 2.6, K: 2.6}, "by 1.3"),
    "without the pattern": (PATTERN, {Q: 2.0, K: 2.0}, "by 0.25: the patterns of ranks and alphas"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("what", WRONG)
def test_a_merge_of_another_multiple_is_named_with_the_likely_reason(
    tmp_path: Path, base: Path, what: str, dtype: torch.dtype
) -> None:
    told, factors, why = WRONG[what]
    whole = merge(base, tmp_path / "merged", factors, dtype)
    adapter = write_adapter(tmp_path / "adapter", small_update(), base, **told)
    for report in (compare(whole, adapter), compare(adapter, whole)):
        seen = {one.name: one.likeness for one in report.deltas if one.state == "beyond"}
        assert report.exit_code == 1
        assert {*seen} == {f"{Q}.weight"} | ({f"{K}.weight"} if told is not PATTERN else set())
        for likeness in seen.values():
            assert likeness is not None
            assert likeness.name == "adapter scaled"
            assert likeness.detail.startswith(why)


def test_a_merge_that_did_nothing_is_different_within_the_tolerance(
    tmp_path: Path, base: Path
) -> None:
    """No element is further off than the 1e-5 that assert_close allows beside 0."""
    parts = small_update(2e-5)
    adapter = write_adapter(tmp_path / "adapter", parts, base)
    report = compare(merge(base, tmp_path / "merged", {}, torch.float32), adapter)
    beyond = [one for one in report.deltas if one.state == "beyond"]
    assert (report.exit_code, sum(one.mismatched for one in beyond)) == (1, 0)
    assert [one.likeness.name for one in beyond if one.likeness] == ["adapter scaled"] * 2


RIGHT: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "alpha / r": ({}, {Q: 2.0, K: 2.0}),
    "rsLoRA": (RSLORA, {Q: 4.0, K: 4.0}),
    "a pattern": (PATTERN, {Q: 8.0, K: 2.0}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("what", RIGHT)
def test_a_merge_as_the_config_says_is_equal(
    tmp_path: Path, base: Path, what: str, dtype: torch.dtype
) -> None:
    told, factors = RIGHT[what]
    whole = merge(base, tmp_path / "merged", factors, dtype)
    adapter = write_adapter(tmp_path / "adapter", small_update(), base, **told)
    report = compare(whole, adapter)
    assert (report.exit_code, report.caveats) == (0, ())


def test_an_update_that_is_rounded_before_it_is_added_is_merged_all_the_same(
    tmp_path: Path, base: Path
) -> None:
    whole = merge(base, tmp_path / "merged", {}, torch.bfloat16)
    weights = load_file(whole / "model.safetensors")
    for module in (Q, K):
        change = (2.0 * delta(small_update(), module)).bfloat16()
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + change
    save_file(weights, whole / "model.safetensors")
    adapter = write_adapter(tmp_path / "adapter", small_update(), base)
    assert compare(whole, adapter).exit_code == 0


def test_other_weights_keep_what_they_look_like(tmp_path: Path, base: Path) -> None:
    whole = merge(base, tmp_path / "merged", {K: 2.0}, torch.float32)
    weights = load_file(whole / "model.safetensors")
    weights[f"{Q}.weight"] = 1.5 * weights[f"{Q}.weight"]
    save_file(weights, whole / "model.safetensors")
    adapter = write_adapter(tmp_path / "adapter", small_update(), base)
    (beyond,) = [one for one in compare(adapter, whole).deltas if one.state == "beyond"]
    assert beyond.likeness is not None
    assert beyond.likeness.fault != "adapter scaled"


IDLE: dict[str, tuple[dict[str, torch.Tensor], torch.dtype, str]] = {
    "lora_B is zero, as it begins": (small_update(0.0), torch.float32, "its update is zero"),
    "bfloat16 rounds it away": (small_update(1e-6), torch.bfloat16, "below half a step"),
}


@pytest.mark.parametrize("what", IDLE)
def test_an_adapter_that_changes_nothing_is_said_to(tmp_path: Path, base: Path, what: str) -> None:
    parts, dtype, why = IDLE[what]
    whole = merge(base, tmp_path / "merged", {}, dtype)
    report = compare(whole, write_adapter(tmp_path / "adapter", parts, base))
    assert report.exit_code == 0
    (note,) = report.caveats
    assert note.startswith("the adapter changes nothing")
    assert why in note


def test_an_adapter_of_other_modules_is_said_to_change_nothing(tmp_path: Path, base: Path) -> None:
    parts = {name.replace("layers.0", "h.0"): one for name, one in small_update().items()}
    report = compare(base, write_adapter(tmp_path / "adapter", parts, base))
    assert report.exit_code == 1  # what it has is no tensor of the base
    assert any("the base has none of its 2 modules" in text for text in report.caveats)
