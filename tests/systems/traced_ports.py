"""Activations of ports to other libraries, under the base's names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from system_models import MODEL, ROOT

from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import BuildRecipe, OwnEnvironment, Variant
from evalguard.core.trace_points import token_inputs
from evalguard.core.trace_record import Trace
from evalguard.engine.sources import ModelSource
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.recordings import RuntimeSide, open_runtime_side

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
IDS = [[2, *((37 * n) % 300 for n in range(60))], [2, *((91 * n + 5) % 300 for n in range(90))]]
POLICY = ScoringPolicy(device="cpu", threads=1)


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


def gguf(source: Path, *, cache: str = "f32", **inputs: Any) -> Variant:
    recipe = BuildRecipe(
        call="evalguard.recipes.gguf:convert",
        output="model.gguf",
        inputs={"source": str(source), **inputs},
    )
    return port("gguf", "llama_cpp", type_k=cache, type_v=cache, BUILD=recipe)


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


def suspects(found: Trace) -> dict[str, str]:
    """Modules that are blamed, and where that was seen."""
    return {one.module: one.point for one in found.suspects}


def local_errors(found: Trace) -> dict[str, float]:
    return {one.point: one.local.relative_l2 for one in found.layers if one.local is not None}


def accumulated_errors(found: Trace) -> dict[str, float]:
    pairs = ((one.point, one.accumulated) for one in found.layers)
    return {point: one.relative_l2 for point, one in pairs if one is not None}


def graph(model: str, source: Path, **given: Any) -> Variant:
    recipe = BuildRecipe(call="evalguard.recipes.onnx:export", inputs={"source": str(source)})
    return port("graph", model, BUILD=recipe, threads=1, **given)


def fla(**given: Any) -> Variant:
    recipe = BuildRecipe(
        call="evalguard.recipes.rwkv7:convert",
        inputs={"source": str(ROOT / "demo/rwkv7/rwkv7.pth"), "tokenizer": str(MODEL)},
    )
    return port("fla", "fla", BUILD=recipe, max_length=512, dtype="float32", **given)
