"""Ports that transformers itself makes, by loading a model in another dtype, have no location."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, ATTENTIONS, FURTHER, save_architecture
from transformers import AutoModelForCausalLM

from evalguard.core.trace_points import token_inputs
from evalguard.tracing.measure.forced_trace import trace_models

# transformers on missing kernels of hybrid models
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*ARCHITECTURES, *ATTENTIONS, *FURTHER])
def test_a_model_that_is_loaded_in_another_dtype_has_no_location(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    # Whose constants and stored tables transformers rounds with the weights: Gemma's scale of
    # embeddings, MiniMax' decays.
    _check_loaded(name, dtype, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3: two kinds of rotary", "minimax: lightning attention"])
def test_constants_that_are_rounded_with_the_weights_are_no_fault(
    name: str, tmp_path: Path
) -> None:
    _check_loaded(name, torch.bfloat16, tmp_path)


def _check_loaded(name: str, dtype: torch.dtype, folder: Path) -> None:
    save_architecture(folder, name)
    base, port = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=one).eval()
        for one in (torch.float32, dtype)
    )
    vocabulary = base.config.get_text_config().vocab_size
    draw = np.random.default_rng(7)
    documents = [token_inputs(draw.integers(5, vocabulary, 14).tolist()) for _ in range(2)]
    assert trace_models(base, port, documents).suspects == ()
