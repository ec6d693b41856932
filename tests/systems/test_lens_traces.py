"""TransformerLens: Gemma 2 with an attention scale of 14.97 where it must be 16."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny_models import save_tokenizer
from traced_ports import accumulated_errors, local_errors, opened, port, suspects, trace

from evalguard.core.settings import Setting, Target

pytestmark = [pytest.mark.systems, pytest.mark.nightly]


OLD_LENS = Setting(
    name="version", reference="3.5.1", candidate="2.3.0 typeguard<3",
    target=Target.parse("package.transformer-lens"),
)  # fmt: skip


@pytest.fixture
def gemma2(tmp_path: Path) -> Path:
    """A random Gemma 2 whose heads are 256 wide, as the original's: an attention scale of 16."""
    size = save_tokenizer(tmp_path / "gemma2")
    torch.manual_seed(1)
    config = transformers.Gemma2Config(
        vocab_size=size, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256,
        max_position_embeddings=128, sliding_window=128, initializer_range=0.3, bos_token_id=0,
        eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path / "gemma2")
    return tmp_path / "gemma2"


def test_the_hooks_of_a_healthy_hooked_transformer_agree_at_every_point(
    gemma2: Path, cache_dir: Path
) -> None:
    found = trace(gemma2, port("lens", "transformer_lens", gemma2, api="hooked"), cache_dir)
    assert not found.suspects
    assert not found.unaligned
    assert len(local_errors(found)) > 40
    # Sums of float32 in another order: below 1e-6 on one processor, 1.006e-6 on another.
    assert max(local_errors(found).values()) < 16 * np.finfo(np.float32).eps


def test_the_wrong_attention_scale_of_2_3_0_is_seen_at_hook_z_and_nowhere_before(
    gemma2: Path, cache_dir: Path
) -> None:
    old = port(
        "lens", "transformer_lens", gemma2, api="hooked", SETTINGS=(OLD_LENS,),
        ASSIGNMENT={"version": OLD_LENS.candidate},
    )  # fmt: skip
    found = trace(gemma2, old, cache_dir)
    hook_z = {f"model.layers.{n}.self_attn": f"model.layers.{n}.self_attn.o_proj:in"
              for n in range(2)}  # fmt: skip
    assert suspects(found) == hook_z
    assert found.first is not None
    assert found.first.module == "model.layers.0.self_attn"
    carried = accumulated_errors(found)
    for name in ("q_proj:out", "k_proj:out", "v_proj:out"):
        assert carried[f"model.layers.0.self_attn.{name}"] < 5e-7
    assert carried["model.layers.0.self_attn.o_proj:in"] > 1e-3
    # What was carried into the second layer is larger than what any other module adds.
    others = [error for point, error in local_errors(found).items() if point not in hook_z.values()]
    assert max(others) < 1e-6
    assert carried["model.layers.1.mlp.down_proj:out"] > 1e-3


def test_what_the_library_holds_is_told_and_not_what_its_arguments_or_files_say(
    gemma2: Path, cache_dir: Path
) -> None:
    old = port(
        "lens", "transformer_lens", gemma2, api="hooked", SETTINGS=(OLD_LENS,),
        ASSIGNMENT={"version": OLD_LENS.candidate},
    )  # fmt: skip
    for variant, scale in (
        (old, 1 / 14.966629),
        (port("lens", "transformer_lens", gemma2, api="hooked"), 1 / 16),
    ):
        with opened(variant, cache_dir) as side:
            held = side.held_values()
        scales = {one.value for one in held if one.name == "attention_scale"}
        assert list(scales) == [pytest.approx(scale, rel=1e-6)]
        assert not any(one.declared for one in held)


def test_a_folder_of_the_shape_of_27b_gets_the_scale_that_the_library_has_for_it(
    gemma2: Path, cache_dir: Path
) -> None:
    config = json.loads((gemma2 / "config.json").read_text(encoding="utf-8"))
    config["query_pre_attn_scalar"] = 144
    (gemma2 / "config.json").write_text(json.dumps(config), encoding="utf-8")
    old = port(
        "lens", "transformer_lens", gemma2, api="hooked", SETTINGS=(OLD_LENS,),
        ASSIGNMENT={"version": OLD_LENS.candidate},
    )  # fmt: skip
    assert not trace(gemma2, old, cache_dir).suspects


def test_a_logit_cap_that_is_off_is_seen_after_the_last_module(
    gemma2: Path, cache_dir: Path
) -> None:
    uncapped = port(
        "lens", "transformer_lens", gemma2, api="hooked", output_logits_soft_cap=-1.0
    )  # fmt: skip
    found = trace(gemma2, uncapped, cache_dir)
    assert suspects(found) == {"(root)": "(root):out"}


def test_a_bridge_wraps_the_modules_and_shows_their_very_numbers(
    gemma2: Path, cache_dir: Path
) -> None:
    found = trace(gemma2, port("bridge", "transformer_lens", gemma2, api="bridge"), cache_dir)
    assert not found.suspects
    assert "model.layers.1.mlp.act_fn:out" in local_errors(found)
    assert max(local_errors(found).values()) < 1e-6
