"""benchmarks/power: the documents that a rule computes are those that its test needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks import needed as power
from benchmarks.needed import Needed, Scatter, needed
from benchmarks.power import _picked
from benchmarks.published import _paired
from benchmarks.quantised import quantised_copy
from benchmarks.tables import scored

RNG = np.random.default_rng(61)
N = 2_000
BASE = -RNG.gamma(1.4, 1.0, N)
WORSE = BASE - 0.02 - 0.2 * RNG.normal(0.0, 1.0, N)


def found(base, candidate, kind, rule, rejects, *, monkeypatch):
    monkeypatch.setattr(power, "RESAMPLES", 100)
    monkeypatch.setattr(power, "DRAWS", 200)
    return needed(scored(base, candidate, kind), rule, rejects, _picked, np.random.default_rng(1))


def test_the_paired_test_sees_the_drift_in_as_many_documents_as_computed(monkeypatch):
    got = found(
        BASE, WORSE, "perplexity", power.paired_rule, power.rejects_paired, monkeypatch=monkeypatch
    )
    d = BASE - WORSE
    assert got.documents == pytest.approx((2.486 * d.std() / d.mean()) ** 2, rel=0.02)
    assert got.low < got.documents < got.high
    assert got.measured == pytest.approx(0.8, abs=4.0 * math.sqrt(0.16 / 200))


def test_the_unpaired_test_needs_many_times_as_many_and_that_is_measured_too(monkeypatch):
    got = found(
        BASE, WORSE, "perplexity", power.unpaired_rule, power.rejects_unpaired,
        monkeypatch=monkeypatch,
    )  # fmt: skip
    assert got.documents > 15 * power.paired_rule(Scatter.of(scored(BASE, WORSE, "perplexity")))
    if got.measured is not None:
        assert got.measured == pytest.approx(0.8, abs=4.0 * math.sqrt(0.16 / 200))


def test_mcnemars_test_sees_lost_answers_in_as_many_documents_as_computed(monkeypatch):
    right = np.ones(N)
    right[:600] = 0.0
    lost = right.copy()
    lost[600:720], lost[:60] = 0.0, 1.0  # 6% lost, 3% won
    got = found(
        right, lost, "mean", power.mcnemar_rule, power.rejects_paired, monkeypatch=monkeypatch
    )
    assert 500 < got.documents < 700
    assert got.measured == pytest.approx(0.82, abs=4.0 * math.sqrt(0.15 / 200))


def test_a_drift_that_may_be_nothing_has_no_upper_end(monkeypatch):
    unclear = BASE - 0.002 - 0.2 * RNG.normal(0.0, 1.0, N)
    got = found(
        BASE, unclear, "perplexity", power.paired_rule, power.rejects_paired,
        monkeypatch=monkeypatch,
    )  # fmt: skip
    assert got.high is None
    assert got.text.startswith("more than ")


def test_numbers_are_said_with_the_digits_that_they_have():
    assert Needed(documents=1_234, low=512, high=9_876, measured=0.8).text == (
        "1,200 (510 to 9,900, 80%)"
    )
    assert Needed(documents=None, low=None, high=None).text == "not seen"
    assert Needed(documents=7, low=5, high=None).text == "more than 5"


def test_a_published_z_of_18_needs_21_documents_of_1130():
    assert _paired(18.3) == "21 (18 to 26)"


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 32)])
def test_rounded_weights_have_the_levels_of_their_bits(bits, group, tiny_llama, tmp_path):
    from safetensors.torch import load_file

    folder = quantised_copy(tiny_llama, tmp_path / "rounded", bits=bits, group=group)
    before, after = (load_file(path / "model.safetensors") for path in (tiny_llama, folder))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed)
    for name in changed:
        for row, other in zip(before[name][:3], after[name][:3], strict=True):
            for part, rounded in zip(
                row.split(group or len(row)), other.split(group or len(row)), strict=True
            ):
                step = part.abs().max() / (2 ** (bits - 1) - 1)
                assert torch.allclose(rounded / step, (rounded / step).round(), atol=1e-3)
                assert float((part - rounded).abs().max()) <= 0.501 * float(step)
