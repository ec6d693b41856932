"""Export a Hugging Face checkpoint as an ONNX graph, with int8 weights if asked.

    build:
      call: evalguard.recipes.onnx:export
      inputs: {source: orig, weights: int8, skip: [lm_head]}

Needs ``torch``, ``transformers``, ``onnx``, ``onnxscript`` and ``onnxruntime``; model types onnx
and openvino load what is written. The graph reads one text of any length, without a cache.
"""

from __future__ import annotations

import ast
import contextlib
import io
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.errors import BuildError, UsageError, nearest
from evalguard.recipes.checkpoints import find_checkpoint

_WEIGHTS = ("float32", "float16", "int8", "uint8")
_PRODUCTS = ("MatMul", "Gemm")
_SCOPES = "pkg.torch.onnx.name_scopes"  # of a node: the modules that it came from, and its own name
_TRACED = 24  # tokens of the text that is traced
_PROBED = (2, 23, 61)  # tokens of texts that prove that another length gives the same
_AGREES = 1e-3  # of the largest logit; float32 on both sides differs by 1e-6


def export(
    output: Path | str,
    source: str,
    weights: str = "float32",
    skip: Sequence[str] = (),
    per_channel: bool = False,
    opset: int = 20,
    attn_implementation: str = "eager",
) -> None:
    """Write a folder with ``model.onnx``, the configuration and the tokenizer.

    A matrix that the output shares with the embeddings is not quantised.

    Args:
        source: checkpoint folder.
        weights: float32; float16 (graph and weights); int8 or uint8: weights of matrix products,
            their inputs rounded to 8 bits as they come (ONNX Runtime's dynamic quantisation).
        skip: patterns of modules that stay float32.
        per_channel: one scale for each output channel in place of one for each matrix.
        opset: of the graph.
        attn_implementation: that transformers traces.

    Raises:
        UsageError: no such kind of weights; a pattern that no module has.
        BuildError: it cannot be exported, another opset or attention was taken, or the graph
            computes something else than the model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if weights not in _WEIGHTS:
        raise UsageError(
            f"no recipe for '{weights}' weights{nearest(weights, _WEIGHTS)}",
            hint=f"one of: {', '.join(_WEIGHTS)}",
        )
    if weights in ("float32", "float16") and (skip or per_channel):
        raise UsageError(f"skip and per_channel are of int8 and uint8, not of {weights}")
    folder, made = str(find_checkpoint(source)), Path(output)
    dtype = torch.float16 if weights == "float16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attn_implementation, use_safetensors=True
    ).eval()
    if (actual := model.config._attn_implementation) != attn_implementation:
        raise BuildError(f"attn_implementation: transformers takes '{actual}' for this model")
    made.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(str(made))
    AutoTokenizer.from_pretrained(folder).save_pretrained(str(made))
    file = made / "model.onnx"
    if weights in ("float32", "float16"):
        _trace(model, file, opset)
        _prove(model, file, float(torch.finfo(dtype).eps) * 100 + _AGREES)
        return
    with tempfile.TemporaryDirectory(dir=made) as scratch:
        whole = Path(scratch) / "model.onnx"
        _trace(model, whole, opset)
        _prove(model, whole, _AGREES)
        _quantise(whole, file, weights, skip, per_channel)


def _trace(model: Any, file: Path, opset: int) -> None:
    import onnx
    import torch

    class OnlyLogits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    ids = torch.arange(_TRACED)[None] % model.config.get_text_config().vocab_size
    length = torch.export.Dim("length", min=1, max=1 << 20)
    captured = io.StringIO()
    try:
        with contextlib.redirect_stdout(captured):
            torch.onnx.export(
                OnlyLogits().eval(),
                (ids,),
                str(file),
                input_names=["input_ids"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim.STATIC, 1: length},),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise BuildError(f"torch.onnx cannot export {type(model).__name__}: {error}") from error
    graph = onnx.load(str(file), load_external_data=False)
    actual = next(entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx"))
    if actual != opset:  # it falls back to its own with a warning
        raise BuildError(f"opset: torch.onnx writes {actual} for this model, not {opset}")


def _prove(model: Any, file: Path, tolerance: float) -> None:
    """Compare the graph's logits with the model's, at lengths that were not traced."""
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    size = model.config.get_text_config().vocab_size
    for tokens in _PROBED:
        ids = generator.integers(0, size, (1, tokens))
        with torch.inference_mode():
            wanted = model(input_ids=torch.from_numpy(ids), use_cache=False).logits.float().numpy()
        logits = session.run(["logits"], {"input_ids": ids})[0].astype(np.float32)
        apart = float(np.abs(logits - wanted).max() / np.abs(wanted).max())
        if not apart <= tolerance:
            raise BuildError(
                f"the exported graph computes something else than the model: logits of {tokens} "
                f"tokens are apart by {apart:.2g} of the largest"
            )


def _quantise(
    source: Path, file: Path, weights: str, skip: Sequence[str], per_channel: bool
) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(source), load_external_data=False).graph
    held = {tensor.name for tensor in graph.initializer}
    products = {
        node.name: _module_of(node)
        for node in graph.node
        if node.op_type in _PRODUCTS and held.intersection(node.input)
    }
    for pattern in skip:
        if not any(fnmatchcase(module, pattern) for module in products.values()):
            known = dict.fromkeys(products.values())
            raise UsageError(
                f"skip: no weights that are quantised are in a module '{pattern}'"
                f"{nearest(pattern, known)}",
                hint=f"e.g. {', '.join(list(known)[-8:])}",
            )
    excluded = [
        name
        for name, module in products.items()
        if any(fnmatchcase(module, pattern) for pattern in skip)
    ]
    quantize_dynamic(
        str(source),
        str(file),
        op_types_to_quantize=list(_PRODUCTS),
        weight_type=QuantType.QInt8 if weights == "int8" else QuantType.QUInt8,
        per_channel=per_channel,
        nodes_to_exclude=excluded,
        extra_options={"MatMulConstBOnly": True},
    )


def _module_of(node: Any) -> str:
    """The module that a node was traced in, by its name in the checkpoint."""
    text = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
    scopes = ast.literal_eval(text)
    return str(scopes[-2]).removeprefix("model.") if len(scopes) > 1 else ""
