"""Where ports of other libraries introduce error: their activations, under the base's names.

The base is forced to what the port's own library shows of it, so that each error is seen where it
is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from system_models import MODEL, ROOT
from tiny_models import save_tokenizer

from evalguard.core.reports.trace_report import Trace
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import BuildRecipe, OwnEnvironment, Setting, Target, Variant
from evalguard.core.tracing.points import token_inputs
from evalguard.models.tracing.model_trace import trace_models
from evalguard.run.sources import ModelSource
from evalguard.run.tracing.recorded_sides import RuntimeSide, open_runtime_side

pytestmark = pytest.mark.systems

TORCH = ("torch==2.13.0", "transformers==5.23.0")
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "lens": (*TORCH, "transformer-lens==3.5.1"),
    "bridge": (*TORCH, "transformer-lens==4.3.0"),
    "gguf": ("xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors", "numpy"),
    "graph": (
        *TORCH, "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.32.0", "openvino==2026.4.1",
    ),
    "fla": (*TORCH, "triton==3.9.0", "flash-linear-attention==0.6.0"),
    "rwkv": ("torch==2.13.0", "rwkv==0.8.32", "tokenizers", "numpy"),
}  # fmt: skip
OLD_LENS = Setting(
    name="version", reference="3.5.1", candidate="2.3.0 typeguard<3",
    target=Target.parse("package.transformer-lens"),
)  # fmt: skip
IDS = [[2, *((37 * n) % 300 for n in range(60))], [2, *((91 * n + 5) % 300 for n in range(90))]]
POLICY = ScoringPolicy(device="cpu", threads=1)


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


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A random Llama whose matrices are whole blocks of 32."""
    size = save_tokenizer(tmp_path / "llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.2, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def port(kind: str, model: str, source: Path | None = None, **given: Any) -> Variant:
    """A port of a checkpoint; keywords in capitals belong to the variant itself."""
    own = {key.lower(): value for key, value in given.items() if key.isupper()}
    arguments = {key: value for key, value in given.items() if not key.isupper()}
    if source is not None:
        arguments["pretrained"] = str(source)
    environment = OwnEnvironment(python="", requirements=ENVIRONMENTS[kind])
    return Variant(
        name=kind, model=model, model_args=arguments, environment=environment, allow_code=True,
        **own,
    )  # fmt: skip


def gguf(source: Path, **inputs: Any) -> Variant:
    recipe = BuildRecipe(
        call="evalguard.recipes.gguf:convert",
        output="model.gguf",
        inputs={"source": str(source), **inputs},
    )
    return port("gguf", "llama_cpp", type_k="f32", type_v="f32", BUILD=recipe)


@contextlib.contextmanager
def opened(variant: Variant, cache_dir: Path) -> Iterator[RuntimeSide]:
    source = ModelSource(name=variant.name, variant=variant)
    with contextlib.closing(open_runtime_side(source, POLICY, cache_dir=cache_dir)) as side:
        yield side


def trace(source: Path, candidate: Variant, cache_dir: Path) -> Trace:
    """The checkpoint in this process, forced to what the port's library shows."""
    sequences = [token_inputs(ids) for ids in IDS]
    with opened(candidate, cache_dir) as side:
        recorded = side.record(sequences)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        str(source), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with contextlib.closing(recorded):
        return trace_models(base, recorded, sequences)


def trace_there(base: Variant, candidates: Sequence[Variant], cache_dir: Path) -> list[Trace]:
    """Both models in environments of their own: the base is traced in its worker."""
    sequences = [token_inputs(ids) for ids in IDS]
    found = []
    with opened(base, cache_dir) as original:
        for candidate in candidates:
            with opened(candidate, cache_dir) as side:
                recorded = side.record(sequences)
            with contextlib.closing(recorded):
                found.append(original.trace(recorded, sequences))
    return found


def suspects(found: Trace) -> dict[str, str]:
    """Modules that are blamed, and where that was seen."""
    return {one.module: one.point for one in found.suspects}


def local_errors(found: Trace) -> dict[str, float]:
    return {one.point: one.local.relative_l2 for one in found.layers if one.local is not None}


def accumulated_errors(found: Trace) -> dict[str, float]:
    pairs = ((one.point, one.accumulated) for one in found.layers)
    return {point: one.relative_l2 for point, one in pairs if one is not None}


# TransformerLens: Gemma 2 with an attention scale of 14.97 where it must be 16.


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


# llama.cpp.


def test_gguf_in_float32_agrees_with_pytorch_at_every_point(llama: Path, cache_dir: Path) -> None:
    found = trace(llama, gguf(llama, type="F32"), cache_dir)
    assert not found.suspects
    assert not found.unaligned
    assert max(local_errors(found).values()) < 1e-6
    assert max(accumulated_errors(found).values()) < 5e-6
    assert {"model.layers.3.self_attn.o_proj:in", "(root):out"} <= local_errors(found).keys()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_0", "Q4_0"])
def test_gguf_whose_matrices_are_all_rounded_alike_has_no_single_location(
    kind: str, llama: Path, cache_dir: Path
) -> None:
    found = trace(llama, gguf(llama, type=kind), cache_dir)
    assert not found.suspects
    assert max(accumulated_errors(found).values()) > 1e-4


def test_gguf_one_matrix_in_four_bits_of_a_file_in_fp16_is_named(
    llama: Path, cache_dir: Path
) -> None:
    overrides = {"blk.1.ffn_down.weight": "Q4_0"}
    found = trace(llama, gguf(llama, type="F16", overrides=overrides), cache_dir)
    assert list(suspects(found)) == ["model.layers.1.mlp.down_proj"]


def test_gguf_a_wrong_rope_base_is_seen_in_the_attention(llama: Path, cache_dir: Path) -> None:
    found = trace(llama, gguf(llama, type="F32", rope_base=9000.0), cache_dir)
    assert set(suspects(found)) == {f"model.layers.{n}.self_attn" for n in range(4)}


def test_gguf_of_gemma_2_is_blamed_for_ggmls_table_of_gelu(cache_dir: Path) -> None:
    found = trace(MODEL, gguf(MODEL, type="F32"), cache_dir)
    assert set(suspects(found).values()) == {f"model.layers.{n}.mlp.down_proj:in" for n in range(4)}
    errors = local_errors(found)
    assert all(error < 1e-3 for error in errors.values())


# Exported graphs.


def graph(model: str, source: Path, **given: Any) -> Variant:
    recipe = BuildRecipe(call="evalguard.recipes.onnx:export", inputs={"source": str(source)})
    return port("graph", model, BUILD=recipe, threads=1, **given)


def test_onnx_tensors_of_a_graph_agree_with_the_modules_they_were_traced_from(
    llama: Path, cache_dir: Path
) -> None:
    found = trace(llama, graph("onnx", llama), cache_dir)
    assert not found.suspects
    assert {"model.layers.2.self_attn.o_proj:in", "lm_head:out"} <= local_errors(found).keys()
    assert max(local_errors(found).values()) < 2e-6


def test_openvino_agrees_in_float32_and_in_bfloat16_is_of_that_precision(
    llama: Path, cache_dir: Path
) -> None:
    exact = trace(llama, graph("openvino", llama, precision="f32"), cache_dir)
    assert not exact.suspects
    assert max(local_errors(exact).values()) < 2e-6
    rounded = trace(llama, graph("openvino", llama, precision="bf16"), cache_dir)
    assert not rounded.suspects
    assert rounded.twin is not None
    assert rounded.twin.dtype == "bfloat16"


# RWKV-7: neither side is a model of this environment.


def fla(**given: Any) -> Variant:
    recipe = BuildRecipe(
        call="evalguard.recipes.rwkv7:convert",
        inputs={"source": str(ROOT / "demo/rwkv7/rwkv7.pth"), "tokenizer": str(MODEL)},
    )
    return port("fla", "fla", BUILD=recipe, max_length=512, dtype="float32", **given)


def test_rwkv7_chunks_differ_from_the_recurrence_before_the_group_norm_and_pip_does_not(
    cache_dir: Path,
) -> None:
    rounded = Setting(
        name="g_norm", reference="float32", candidate="bfloat16",
        target=Target.parse("dtype:model.layers.1.attn.g_norm"),
    )  # fmt: skip
    pip = port(
        "rwkv", "rwkv", ROOT / "demo/rwkv7/rwkv7.pth", tokenizer=str(MODEL), max_length=512
    )  # fmt: skip
    chunks, norm, other = trace_there(
        fla(prefill="recurrent"),
        [
            fla(prefill="chunk"),
            fla(prefill="recurrent", SETTINGS=(rounded,), ASSIGNMENT={"g_norm": "bfloat16"}),
            pip,
        ],
        cache_dir,
    )
    assert suspects(chunks) == {
        f"model.layers.{n}.attn": f"model.layers.{n}.attn.g_norm:in" for n in range(2)
    }
    assert list(suspects(norm)) == ["model.layers.1.attn.g_norm"]
    assert not other.suspects
    assert not other.unaligned
    assert max(accumulated_errors(other).values()) < 5e-6
