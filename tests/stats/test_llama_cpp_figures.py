"""llama.cpp's own figures of distributions, held to what llama-perplexity printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from evalguard.distributions.kl import DP_PERCENTS, KL_PERCENTS
from evalguard.distributions.llama_cpp_block import llama_cpp_figures, llama_cpp_lines

HERE = Path(__file__).parent / "llama_cpp_figures"


def test_the_figures_are_those_that_llama_perplexity_printed() -> None:
    """llama-perplexity of llama.cpp b11063, float32, stories260K and the same with 4 bits of
    mantissa: every printed digit but the last one of some, since its sums are float32."""
    columns = np.load(HERE / "positions.npz")
    base, candidate, kl = (columns[name].astype("f8") for name in ("base", "candidate", "kl"))
    figures = llama_cpp_figures(
        base, candidate, kl, columns["same_top"], kl_percents=KL_PERCENTS, dp_percents=DP_PERCENTS
    )
    assert figures is not None
    printed = (HERE / "printed.txt").read_text(encoding="utf-8").splitlines()
    number = re.compile(r"-?\d+\.\d+")
    for ours, theirs in zip(llama_cpp_lines(figures), printed, strict=True):
        assert number.sub("#", ours) == number.sub("#", theirs)
        for one, other in zip(number.findall(ours), number.findall(theirs), strict=True):
            last = 10.0 ** -len(other.partition(".")[2])
            assert abs(float(one) - float(other)) < 2.5 * last, theirs
