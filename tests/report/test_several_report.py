"""Steps of a chain: in standard errors of its base, so that they add up to the whole drift."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from distribution_examples import distribution
from example_reports import DEMO, comparison
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.comparison import Comparison
from evalguard.core.reports.several_report import NoVerdict, SeveralReport, step_drifts
from evalguard.report.several import SEVERAL_FORMATS, render_several


def drift(base: np.ndarray, candidate: np.ndarray) -> Comparison:
    """A comparison of two models' means; higher is worse."""
    difference = candidate - base
    stderr = base.std(ddof=1) / np.sqrt(base.size)
    half = 1.96 * difference.std(ddof=1) / np.sqrt(base.size) / stderr
    sigma = difference.mean() / stderr
    return comparison(
        base=base.mean(),
        base_stderr=stderr,
        candidate=candidate.mean(),
        sigma=sigma,
        sigma_interval=(sigma - half, sigma + half),
        higher_is_better=False,
    )


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10.0))
def test_steps_add_up_whatever_the_standard_error_of_the_model_between(
    seed: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    base = rng.normal(size=60)
    port = base * spread + rng.normal(0.1, 0.2, size=60)
    quantised = port + rng.normal(0.05, 0.1, size=60)
    first, whole = drift(base, port), drift(base, quantised)
    (step,) = step_drifts([drift(port, quantised)], [first, whole])
    assert step.sigma is not None
    assert first.sigma is not None
    assert first.sigma + step.sigma == pytest.approx(whole.sigma, rel=1e-9, abs=1e-9)
    assert step.interval is not None
    # Of the step alone, by hand: its paired interval over the base's standard error.
    difference = quantised - port
    half = 1.96 * difference.std(ddof=1) / base.std(ddof=1)
    assert step.interval[1] - step.sigma == pytest.approx(half, rel=1e-9)


def test_a_step_has_no_size_where_the_base_has_no_standard_error() -> None:
    rng = np.random.default_rng(3)
    of_step = drift(rng.normal(size=9), rng.normal(size=9))
    nothing = comparison(base_stderr=0.0)
    (step,) = step_drifts([of_step], [nothing])
    assert (step.sigma, step.interval) == (None, None)


def test_a_step_that_changes_no_score_is_0() -> None:
    same = comparison(bit_identical=True, sigma=None, sigma_interval=None)
    (step,) = step_drifts([same], [comparison(base_stderr=0.0)])
    assert (step.sigma, step.interval) == (0.0, (0.0, 0.0))


def test_an_annotation_says_which_candidate_has_no_verdict() -> None:
    gone = NoVerdict(name="int4", reason="there is no model folder", hint="", exit_code=3)
    report = SeveralReport(base="orig", candidates=(DEMO, gone))
    lines = SEVERAL_FORMATS["annotations"](report).splitlines()
    assert any(line.startswith("::") and "fla-port" in line for line in lines)
    assert lines[-1] == "::error title=int4%3A no verdict::there is no model folder"


def test_distributions_that_are_the_same_are_told_from_ones_that_are_not_known() -> None:
    same = dataclasses.replace(DEMO, distributions=(distribution(bit_identical=True),))
    other = dataclasses.replace(DEMO, distributions=())
    renamed = dataclasses.replace(other.candidate, name="int4")
    other = dataclasses.replace(other, candidate=renamed)
    text = render_several(
        SeveralReport(base="orig", candidates=(same, other)), width=120, color=False
    )
    (row,) = [line.split() for line in text.splitlines() if "same top token" in line]
    assert row[-1] == "-"
    assert row[-2] != "-"
