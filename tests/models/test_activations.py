"""Activations of a runtime: streamed one at a time, under the names of modules, and forced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes.ggml_points import name_module
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments, stream_activations
from evalguard.models.runtimes.runtime_scorer import RuntimeScorer
from evalguard.models.runtimes.torch_runtime import hook_modules
from evalguard.models.runtimes.transformer_lens import name_points
from evalguard.models.runtimes.types import load_runtime

IDS = [0, 5, 9, 30, 31, 7]
Q_PROJ, O_PROJ = "model.layers.0.self_attn.q_proj:out", "model.layers.0.self_attn.o_proj:in"


@pytest.fixture
def runtime(tiny_llama: Path) -> Any:
    arguments = RuntimeArguments(
        model_type="transformers", given={"pretrained": str(tiny_llama)}, device="cpu", threads=1
    )
    runtime = load_runtime("transformers", arguments)
    yield runtime
    runtime.close()


@pytest.fixture
def scorer(runtime: Runtime) -> RuntimeScorer:
    return RuntimeScorer(runtime, ScoringPolicy(), ModelDescription(model_type="transformers"))


def test_a_torch_runtime_shows_inputs_and_outputs_of_its_modules(
    runtime: Runtime, scorer: RuntimeScorer
) -> None:
    found = dict(scorer.activations(IDS))
    with torch.no_grad():
        whole = runtime.module(torch.tensor([IDS]), output_hidden_states=True)
    assert np.array_equal(found["model.layers.0:out"], whole.hidden_states[1].numpy())
    assert np.array_equal(found["lm_head:out"], whole.logits.numpy())
    assert {Q_PROJ, O_PROJ, "model.embed_tokens:out"} <= found.keys()
    assert all(value.dtype == np.float32 for value in found.values())


def test_only_points_that_are_wanted_are_given(scorer: RuntimeScorer) -> None:
    assert list(dict(scorer.activations(IDS, wanted=[O_PROJ, Q_PROJ]))) == [Q_PROJ, O_PROJ]


def test_what_is_forced_is_what_the_rest_starts_from(scorer: RuntimeScorer, tmp_path: Path) -> None:
    own = dict(scorer.activations(IDS))
    file = tmp_path / "value.npy"
    np.save(file, own[O_PROJ][0])  # leading axes of one may be missing
    same = dict(scorer.activations(IDS, forced={O_PROJ: str(file)}))
    assert all(np.array_equal(same[point], own[point]) for point in own)
    np.save(file, 2 * own[O_PROJ])
    other = dict(scorer.activations(IDS, forced={O_PROJ: str(file)}))
    after = "model.layers.0.self_attn.o_proj:out"
    assert np.array_equal(other[O_PROJ], own[O_PROJ])  # its own value comes first
    assert np.allclose(other[after], 2 * own[after], rtol=1e-5)


def test_a_forced_value_that_does_not_fit_is_an_error(
    scorer: RuntimeScorer, tmp_path: Path
) -> None:
    file = tmp_path / "value.npy"
    np.save(file, np.zeros(3))
    with pytest.raises(EvaluationError, match=rf"forced at {O_PROJ} has shape \(3,\)"):
        list(scorer.activations(IDS, forced={O_PROJ: str(file)}))
    file.write_bytes(b"nothing")
    with pytest.raises(EvaluationError, match="cannot be read"):
        list(scorer.activations(IDS, forced={O_PROJ: str(file)}))
    assert len(dict(scorer.activations(IDS, wanted=[O_PROJ]))) == 1  # no hook is left


class Twice(torch.nn.Module):
    """Runs one module twice, which gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRU(3, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, _ = self.inner(x)
        second, state = self.inner(input=first)
        return second + state.mean()  # type: ignore[no-any-return]


def test_a_module_that_runs_twice_has_points_of_both_calls_and_of_all_its_outputs() -> None:
    torch.manual_seed(0)
    model, seen = Twice().eval(), {}

    def visit(point: str, value: Callable[[], Any]) -> Any:
        seen[point] = value().copy()
        return np.zeros_like(seen[point]) if point == "inner#2:out.1" else None

    with torch.no_grad(), hook_modules(model, {"inner": "inner"}, visit):
        found = model(torch.ones(1, 4, 3))
    assert list(seen) == [
        "inner:in", "inner:out", "inner:out.1", "inner#2:in", "inner#2:out", "inner#2:out.1",
    ]  # fmt: skip
    assert np.array_equal(found.numpy(), seen["inner#2:out"])  # the state was replaced by zeros
    assert np.array_equal(seen["inner#2:in"], seen["inner:out"])


def test_a_cast_by_a_hook_of_the_module_is_its_own_doing() -> None:
    model, seen = torch.nn.Sequential(torch.nn.Linear(3, 3)), {}
    model[0].register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(),))
    given = torch.full((1, 3), 1.0 + 2.0**-12)

    def visit(point: str, value: Callable[[], Any]) -> None:
        seen[point] = value().copy()

    with torch.no_grad(), hook_modules(model, {"0": "linear"}, visit):
        model(given)
    assert np.array_equal(seen["linear:in"], given.numpy())


def test_the_model_waits_until_a_value_is_taken_so_that_one_is_in_memory() -> None:
    made: list[int] = []

    def read(visit: Any) -> None:
        for number in range(5):
            visit(f"m{number}:out", lambda number=number: made.append(number) or np.zeros(2))  # type: ignore[func-returns-value,misc]

    values = stream_activations(read)
    for taken in range(5):
        next(values)
        assert len(made) == taken + 1
    assert next(values, None) is None


def test_a_pass_that_nobody_finishes_is_broken_off() -> None:
    before, reached = threading.active_count(), []

    def read(visit: Any) -> None:
        for number in range(100):
            visit(f"m{number}:out", lambda: np.zeros(2))
            reached.append(number)

    values = stream_activations(read)
    next(values)
    values.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(reached) < 100


def test_what_a_pass_raises_reaches_whoever_takes_its_values() -> None:
    def read(visit: Any) -> None:
        visit("m:out", lambda: np.zeros(2))
        raise ValueError("no such token")

    values = stream_activations(read)
    assert next(values)[0] == "m:out"
    with pytest.raises(ValueError, match="no such token"):
        next(values)


class Silent(Runtime):
    """A runtime of a library that shows nothing."""

    max_length, vocabulary_size, prefix_token_id, eot_token_id = 8, 4, 0, 1

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def decode_special(self, token: int) -> str:
        return ""

    def logits(self, ids: Sequence[int], first: int) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...


def test_a_runtime_that_shows_nothing_says_so_and_a_text_that_is_too_long_too() -> None:
    silent = RuntimeScorer(Silent(), ScoringPolicy(), ModelDescription(model_type="silent"))
    with pytest.raises(UsageError, match="shows no activations"):
        list(silent.activations([0, 1]))
    for ids in ([], list(range(9))):
        with pytest.raises(EvaluationError, match="is to be traced in a model that reads 8"):
            list(silent.activations(ids))


def test_hooks_of_transformer_lens_have_the_names_of_the_hugging_face_model() -> None:
    names = name_points("Gemma2ForCausalLM", 3)
    assert names["blocks.2.attn.hook_z:out"] == "model.layers.2.self_attn.o_proj:in"
    assert names["blocks.0.hook_resid_post:out"] == "model.layers.0:out"
    assert names["blocks.1.ln2:out"] == "model.layers.1.pre_feedforward_layernorm:out"
    llama = name_points("LlamaForCausalLM", 1)
    assert llama["blocks.0.ln2:out"] == "model.layers.0.post_attention_layernorm:out"
    with pytest.raises(UsageError, match="OPTForCausalLM are not known as points"):
        name_points("OPTForCausalLM", 1)


@pytest.mark.parametrize(
    ("architecture", "tensor", "module"),
    [
        ("llama", "blk.3.attn_output.weight", ("model.layers.3.self_attn.o_proj", "weight")),
        ("llama", "blk.0.ffn_norm.weight", ("model.layers.0.post_attention_layernorm", "weight")),
        ("gemma2", "blk.0.ffn_norm.weight", ("model.layers.0.pre_feedforward_layernorm", "weight")),
        ("qwen2", "blk.1.attn_q.bias", ("model.layers.1.self_attn.q_proj", "bias")),
        ("llama", "output_norm.weight", ("model.norm", "weight")),
        ("llama", "rope_freqs.weight", None),
        ("llama", "cache_k_l0 (view)", None),
    ],
)
def test_tensors_of_gguf_files_have_the_names_of_the_hugging_face_model(
    architecture: str, tensor: str, module: Any
) -> None:
    assert name_module(architecture, tensor) == module
