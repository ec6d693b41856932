"""A base is forced to what was recorded of another runtime: the segment at fault is named."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.numpy import save_file
from transformers import HubertConfig, HubertModel

from evalguard.core.name_map import NameMap, parse_name_map
from evalguard.core.trace_record import Trace
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.models.runtimes.torch_runtime import hook_modules
from evalguard.tensor_files.activation_dumps import list_sequences
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.recordings import open_dump, read_token_ids

CONV, GELU = "feature_extractor.conv_layers.{}.conv", "feature_extractor.conv_layers.{}.activation"
LAYERS = 3
SIGNALS = (700, 900)
# ggml's tensors are named after the graph, and conv outputs there are [time, channels].
NAMES = parse_name_map(
    {
        "map": [
            {"base": "feature_extractor.conv_layers.0.conv:in", "cand": "signal"},
            {"base": "feature_extractor.conv_layers.*.conv:out", "cand": "conv-*",
             "transpose": [1, 0]},
            {"base": "feature_extractor.conv_layers.*.layer_norm:out", "cand": "group_norm-*"},
            {"base": "feature_extractor.conv_layers.*.activation:out", "cand": "gelu-*"},
            {"base": "feature_projection.layer_norm:out", "cand": "ln"},
            {"base": "feature_projection.projection:out", "cand": "proj"},
            {"base": "encoder.pos_conv_embed:out", "cand": "pos_conv"},
            {"base": "encoder.layer_norm:out", "cand": "enc_ln"},
            {"base": "encoder.layers.*.attention.*_proj:out", "cand": "blk.*.*"},
            {"base": "encoder.layers.*.attention.out_proj:in", "cand": "blk.*.kqv"},
            {"base": "encoder.layers.*.layer_norm:out", "cand": "blk.*.ln1"},
            {"base": "encoder.layers.*.feed_forward.intermediate_dense:out", "cand": "blk.*.up"},
            {"base": "encoder.layers.*.feed_forward.output_dense:in", "cand": "blk.*.act"},
            {"base": "encoder.layers.*.feed_forward.output_dense:out", "cand": "blk.*.down"},
            {"base": "encoder.layers.*.final_layer_norm:out", "cand": "blk.*.ln2"},
        ]
    },
    where="hubert.yaml",
)  # fmt: skip


@pytest.fixture(scope="module")
def hubert() -> HubertModel:
    torch.manual_seed(0)
    config = HubertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=(16,) * LAYERS, conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=LAYERS, feat_extract_norm="group", do_stable_layer_norm=False,
        mask_time_prob=0.0,
    )  # fmt: skip
    return HubertModel(config).eval()


def signals() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return [
        {"input_values": generator.standard_normal((1, size)).astype(np.float32)}
        for size in SIGNALS
    ]


def by_half_im2col(conv: torch.nn.Conv1d) -> Callable[[torch.Tensor], torch.Tensor]:
    """ggml_conv_1d: patches and weights in fp16, sums in fp32."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        x, weight = x.half().float(), conv.weight.half().float()
        return torch.nn.functional.conv1d(x, weight, conv.bias, conv.stride, conv.padding)

    return forward


def by_gelu_table(x: torch.Tensor) -> torch.Tensor:
    """ggml_gelu: the tanh formula of an fp16 number, looked up in fp16."""
    found = torch.nn.functional.gelu(x.half().float(), approximate="tanh")
    return found.half().float()


def by_other_operand_order(norm: torch.nn.LayerNorm) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        plain = torch.nn.functional.layer_norm(x, norm.normalized_shape, eps=9.99999975e-06)
        return norm.bias + norm.weight * plain

    return forward


def port(hubert: HubertModel, *, conv: bool = True, gelu: bool = True) -> HubertModel:
    made = copy.deepcopy(hubert)
    for layer in made.feature_extractor.conv_layers:
        if conv:
            layer.conv.forward = by_half_im2col(layer.conv)
        if gelu:
            layer.activation.forward = by_gelu_table
    for module in made.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.forward = by_other_operand_order(module)
    return made


def dump(
    model: HubertModel,
    folder: Path,
    names: NameMap = NAMES,
    given: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> Path:
    """Write what flows in a model as another runtime would: its own names and layouts."""
    for number, inputs in enumerate(given or signals()):
        found: dict[str, np.ndarray] = {}

        def visit(point: str, value: Callable[[], Any], found: Any = found) -> None:
            for rule in names.rules:
                matched = rule.match(point)
                if matched is not None:
                    array = np.array(value()[0])
                    found[matched[0]] = array.T if rule.layout.transpose else array

        paths = {path: path for path, _ in model.named_modules() if path}
        with torch.no_grad(), hook_modules(model, paths, visit):
            model(**{name: torch.from_numpy(one) for name, one in inputs.items()})
        step = folder / f"step{number}"
        step.mkdir(parents=True)
        WRITERS[number](step, found)
    return folder


def write_gguf(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    writer = GGUFWriter(str(folder / "dump.gguf"), "hubert")
    for name, value in arrays.items():
        writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    kept = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    save_file(kept, folder / "dump.safetensors")


WRITERS = (write_gguf, write_safetensors)


def trace_dump(hubert: HubertModel, folder: Path) -> Trace:
    modules = [path for path, _ in hubert.named_modules() if path]
    return trace_models(hubert, open_dump(folder, NAMES, modules=modules), signals())


def suspects(trace: Trace) -> set[str]:
    return {one.module for one in trace.suspects}


def test_the_port_of_hubert_to_ggml_is_blamed_for_im2col_and_gelu_and_for_nothing_else(
    hubert: HubertModel, tmp_path: Path
) -> None:
    """eps 9.99999975e-06 is float32(1e-5), and the order of operands changes nothing."""
    found = trace_dump(hubert, dump(port(hubert), tmp_path))
    blamed = {name.format(n) for n in range(LAYERS) for name in (CONV, GELU)}
    assert suspects(found) == blamed
    assert found.first is not None
    assert found.first.module == CONV.format(0)
    assert not found.unaligned
    assert found.documents == len(SIGNALS)
    norms = [one for one in found.layers if "norm:out" in one.point and one.local is not None]
    assert len(norms) == 2 + 2 * 2 + 1
    assert all(one.local.relative_l2 < 1e-6 for one in norms if one.local is not None)
    # What is carried along is larger there than what is introduced anywhere.
    carried = {one.point: one.accumulated for one in found.layers}
    last = carried["encoder.layers.1.final_layer_norm:out"]
    assert last is not None
    assert last.relative_l2 > 1e-4


@pytest.mark.slow
def test_a_port_that_computes_as_pytorch_does_is_blamed_for_nothing(
    hubert: HubertModel, tmp_path: Path
) -> None:
    found = trace_dump(hubert, dump(port(hubert, conv=False, gelu=False), tmp_path))
    assert not suspects(found)
    only = trace_dump(hubert, dump(port(hubert, conv=False), tmp_path / "gelu"))
    assert suspects(only) == {GELU.format(n) for n in range(LAYERS)}


def test_a_dump_of_something_else_names_what_both_have(hubert: HubertModel, tmp_path: Path) -> None:
    folder = dump(hubert, tmp_path)
    modules = [path for path, _ in hubert.named_modules() if path]
    with pytest.raises(UsageError, match=r"it has .*, the base encoder.layers.0") as caught:
        open_dump(folder, modules=modules)
    assert "name map" in caught.value.hint


def test_a_dump_of_fewer_documents_or_of_other_ones_is_an_error(
    hubert: HubertModel, tmp_path: Path
) -> None:
    recorded = open_dump(dump(hubert, tmp_path), NAMES)
    one, other = signals()
    with pytest.raises(UsageError, match="has 2 sequences, and sequence 3 is asked for"):
        trace_models(hubert, recorded, [one, other, one])
    with pytest.raises(EvaluationError, match="no recorded activation has the name and shape"):
        trace_models(hubert, recorded, [other])


@pytest.mark.parametrize("healthy", [True, False])
def test_a_dump_whose_documents_are_exchanged_is_refused(
    hubert: HubertModel, tmp_path: Path, healthy: bool
) -> None:
    one, other = (values["input_values"] for values in signals())
    size = min(one.shape[1], other.shape[1])
    given = [{"input_values": values[:, :size].copy()} for values in (one, other)]
    model = hubert if healthy else port(hubert)
    folder = dump(model, tmp_path, given=given)
    modules = [path for path, _ in hubert.named_modules() if path]
    trace_models(hubert, open_dump(folder, NAMES, modules=modules), given)
    words = r"exchanged: document 1 of the recording .* is as document 2"
    with pytest.raises(MisalignedRunsError, match=words):
        trace_models(hubert, open_dump(folder, NAMES, modules=modules), given[::-1])
    # Of known inputs, which are held against the traced ones, a model may have mixed them up.
    for number, sequence in enumerate(list_sequences(folder)):
        np.savez(sequence / "inputs.npz", **given[1 - number])
    mixed = trace_models(hubert, open_dump(folder, NAMES, modules=modules), given[::-1])
    assert mixed.suspects


def test_inputs_that_a_language_model_does_not_read_are_refused() -> None:
    ids = np.array([[3, 4, 5]])
    assert read_token_ids({"input_ids": ids, "attention_mask": ids > 0}, "m") == [3, 4, 5]
    with pytest.raises(UsageError, match="reads token ids, and the inputs are input_values"):
        read_token_ids(signals()[0], "m")
    for bad in ({"input_ids": np.ones((2, 3))}, {"input_ids": ids, "attention_mask": ids > 3}):
        with pytest.raises(UsageError, match="reads one sequence without padding"):
            read_token_ids(bad, "m")
