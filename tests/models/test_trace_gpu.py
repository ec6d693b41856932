"""Traces of models on a CUDA device, whose sums are made in another order than the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from traced_models import changed, make_llama, make_sequences

from evalguard.tracing.measure.forced_trace import trace_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DOCUMENTS = make_sequences()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cpu", "cuda")])
def test_a_healthy_port_has_no_location(devices: tuple[str, str], dtype: torch.dtype) -> None:
    base = make_llama()
    candidate = changed(base, lambda _: None, dtype).to(devices[1])
    trace = trace_models(base.to(devices[0]), candidate, DOCUMENTS)
    assert trace.suspects == ()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_scale_of_attention_is_found_where_it_is(dtype: torch.dtype) -> None:
    base = make_llama()

    def plant(model: Any) -> None:
        model.model.layers[1].self_attn.scaling *= 1.065

    candidate = changed(base, plant, dtype).to("cuda")
    trace = trace_models(base.to("cuda"), candidate, DOCUMENTS)
    assert [suspect.module for suspect in trace.suspects] == ["model.layers.1.self_attn"]
    assert "before o_proj" in trace.suspects[0].operation
