"""dtype: edits change what they name, in weights and in computation, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from evalguard.conversion.edits import read_dtype, set_dtypes
from evalguard.conversion.planning import DtypeEdit
from evalguard.errors import SettingError

IDS = torch.arange(2, 22).reshape(2, 10)


def edit(glob: str, dtype: str, setting: str = "s") -> DtypeEdit:
    return DtypeEdit(setting=setting, glob=glob, dtype=dtype)


@pytest.fixture
def model(tiny_llama: Path) -> torch.nn.Module:
    loaded = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    return loaded.eval()  # type: ignore[no-any-return]


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(IDS).logits  # type: ignore[no-any-return]


def apply(model: torch.nn.Module, *edits: DtypeEdit) -> None:
    set_dtypes(model, edits)
    for one in edits:
        assert read_dtype(model, one, edits) == one.dtype


@pytest.mark.parametrize("glob", ["model.layers.*.input_layernorm", "model.layers.*", "**"])
def test_the_models_own_dtype_changes_no_bit(model: torch.nn.Module, glob: str) -> None:
    before = logits(model)
    apply(model, edit(glob, "float32"))
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    "glob",
    [
        "model.layers.*.input_layernorm", "model.layers.*.self_attn", "model.layers.0.mlp",
        "model.layers.1", "model.embed_tokens", "lm_head", "model.rotary_emb", "model",
        "model.layers.*.mlp.act_fn",
    ],
)  # fmt: skip
def test_a_part_computes_in_another_dtype_and_the_rest_stays(
    model: torch.nn.Module, glob: str
) -> None:
    before = logits(model)
    apply(model, edit(glob, "bfloat16"))
    after = logits(model)
    assert after.dtype == torch.float32
    assert not torch.equal(after, before)
    assert torch.allclose(after, before, atol=2.0)


def test_the_computation_inside_is_really_in_that_dtype(model: torch.nn.Module) -> None:
    seen: list[torch.dtype] = []
    inner = model.model.layers[0].self_attn.q_proj
    inner.register_forward_hook(lambda _, args, out: seen.extend([args[0].dtype, out.dtype]))
    apply(model, edit("model.layers.0.self_attn", "bfloat16"))
    logits(model)
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_the_whole_model_in_bfloat16_equals_loading_it_in_bfloat16(
    model: torch.nn.Module, tiny_llama: Path
) -> None:
    expected = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.bfloat16).eval()
    apply(model, edit("model", "bfloat16"), edit("lm_head", "bfloat16", "head"))
    assert torch.equal(logits(model), logits(expected).float())


def test_an_inner_module_keeps_the_dtype_that_its_own_setting_asks_for(
    model: torch.nn.Module,
) -> None:
    norm = model.model.layers[0].input_layernorm
    norm.weight.data.uniform_(0.5, 1.5)
    before = norm.weight.clone()
    apply(
        model,
        edit("model.layers.*.input_layernorm", "float32", "norms"),
        edit("model.layers.*", "bfloat16", "layers"),
    )
    assert torch.equal(norm.weight, before)  # not rounded on the way
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert logits(model).isfinite().all()


@pytest.mark.parametrize(
    ("glob", "head", "embedding"),
    [
        ("lm_head", torch.bfloat16, torch.float32),
        ("model.embed_tokens", torch.float32, torch.bfloat16),
    ],
)
def test_a_tied_weight_is_untied_from_the_module_outside(
    model: torch.nn.Module, glob: str, head: torch.dtype, embedding: torch.dtype
) -> None:
    before = model.model.embed_tokens.weight.clone()
    apply(model, edit(glob, "bfloat16"))
    assert model.lm_head.weight.dtype == head
    assert model.model.embed_tokens.weight.dtype == embedding
    outside = model.lm_head if head == torch.float32 else model.model.embed_tokens
    assert torch.equal(outside.weight, before)


def test_tied_modules_that_are_named_together_stay_tied(model: torch.nn.Module) -> None:
    apply(model, edit("model.embed_tokens", "bfloat16", "a"), edit("lm_head", "bfloat16", "b"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.bfloat16


def test_rotary_frequencies_keep_float32_unless_named(model: torch.nn.Module) -> None:
    apply(model, edit("model", "bfloat16"))
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_narrow_dtype_does_not_turn_the_attention_mask_into_nan(tiny_llama: Path) -> None:
    eager = AutoModelForCausalLM.from_pretrained(
        tiny_llama, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    apply(eager, edit("model.layers.*.self_attn", "float16"))
    padded = torch.ones_like(IDS)
    padded[0, :4] = 0
    assert eager(IDS, attention_mask=padded).logits.isfinite().all()


def test_generation_with_a_cache_works_in_a_narrower_part(model: torch.nn.Module) -> None:
    apply(model, edit("model.layers.*.self_attn", "bfloat16"))
    out = model.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=1)
    assert out.shape == (2, 13)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([edit("model.layer.*", "bfloat16")], "no module is named"),
        ([edit("model", "bfloat61")], "did you mean 'bfloat16'"),
        ([edit("model", "int8")], "not a dtype to compute in"),
        ([edit("model", "float16", "a"), edit("mod*", "bfloat16", "b")], "'a' and 'b' ask for two"),
    ],
)
def test_edits_that_cannot_be_made_are_errors(
    model: torch.nn.Module, edits: list[DtypeEdit], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        set_dtypes(model, tuple(edits))


def test_a_weight_that_did_not_follow_is_found_when_read_back(model: torch.nn.Module) -> None:
    edits = (edit("model.layers.0", "bfloat16"),)
    set_dtypes(model, edits)
    model.model.layers[0].mlp.float()
    with pytest.raises(SettingError, match=r"did not take: .*mlp.* is float32, asked was bfloat16"):
        read_dtype(model, edits[0], edits)
