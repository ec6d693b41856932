"""A whole comparison on a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evalguard

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_against_itself_is_unchanged_to_the_last_bit(
    tiny_llama: Path, task_folder: Path, tmp_path: Path, dtype: str
) -> None:
    result = evalguard.compare(
        tiny_llama, tiny_llama, tasks=("sw_word", "sw_choice"), include_path=(task_folder,),
        base_model_args={"dtype": dtype}, cand_model_args={"dtype": dtype}, device="cuda",
        cache_dir=tmp_path / "cache", use_cache=False, write=False, quiet=True,
    )  # fmt: skip
    assert result.passed
    assert all(comparison.bit_identical for comparison in result.comparisons)
    found = [(one.exact, one.kl.value, one.same_top1.value) for one in result.distributions]
    assert all(one.bit_identical for one in result.distributions), (found, result.report.notes)
    resources = result.report.resources
    assert resources is not None
    assert resources.device_peak_memory is not None
    assert resources.device_peak_memory > 0


def test_a_port_in_bfloat16_is_compared_with_its_float32_original(
    tiny_llama: Path, task_folder: Path, tmp_path: Path
) -> None:
    result = evalguard.compare(
        tiny_llama, tiny_llama, tasks=("sw_word",), include_path=(task_folder,),
        base_model_args={"dtype": "float32"}, cand_model_args={"dtype": "bfloat16"},
        device="cuda", cache_dir=tmp_path / "cache", write=False, quiet=True,
    )  # fmt: skip
    assert all(comparison.outcome != "failed" for comparison in result.comparisons)
    (found,) = result.distributions
    assert 0.0 < found.kl.value < 0.1
