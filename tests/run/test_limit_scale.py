"""Scales of limits: their mean over documents is the gate's own figure, and the base is at 0."""

from __future__ import annotations

import numpy as np
import pytest
from fake_models import table

from evalguard.bisect.scales import AnswerScale, LimitScale
from evalguard.core.divergence import Divergence, DocumentDivergence, divergence
from evalguard.core.limits import Limit, figure_of
from evalguard.distributions.kl import compare_distributions
from evalguard.errors import UsageError

VOCABULARY = 24


def rows(rng: np.random.Generator, positions: int) -> np.ndarray:
    logits = rng.standard_normal((positions, VOCABULARY))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def asked(rng: np.random.Generator, positions: int) -> Divergence:
    base = rows(rng, positions)
    moved = base + 0.3 * rng.standard_normal(base.shape)
    moved -= np.log(np.exp(moved).sum(axis=1, keepdims=True))
    return divergence(base, moved, rng.integers(0, VOCABULARY, positions))


@pytest.fixture
def documents() -> list[DocumentDivergence]:
    """Documents of unequal length, several requests each; the last has no scored position."""
    rng = np.random.default_rng(4)
    made = [
        DocumentDivergence(doc_id=n, requests=tuple(asked(rng, 1 + (n * k) % 7) for k in (1, 3)))
        for n in range(30)
    ]
    return [*made, DocumentDivergence(doc_id=30, requests=())]


@pytest.mark.parametrize(
    ("name", "value"), [("kl_mean", 0.01), ("same_top1", 0.98), ("same_topk", 0.9)]
)
def test_the_mean_over_documents_is_the_figure_that_the_gate_judges(
    documents: list[DocumentDivergence], name: str, value: float
) -> None:
    limit = Limit(metric=name, value=value)
    scale = LimitScale.of(limit, "t", documents)
    assert len(scale.doc_ids) == 30
    scores = scale.scores(np.array([scale.value(one.requests) for one in documents[:30]]))
    figure = figure_of(name, compare_distributions("t", documents)).value
    assert figure is not None
    expected = figure if limit.kind == "upper" else 1.0 - figure
    assert -scores.mean() == pytest.approx(expected, rel=1e-12)
    assert scale.figure(documents) == pytest.approx(expected, rel=1e-12)
    drift = -scores.mean() / scale.yardstick
    assert scale.sigma(drift) == pytest.approx(expected, rel=1e-12)
    assert scale.margin(scale.sigma(2.5)) == pytest.approx(2.5)
    assert scale.margin(scale.yardstick) == pytest.approx(1.0)


def test_other_documents_than_those_of_the_scale_give_no_figure(
    documents: list[DocumentDivergence],
) -> None:
    scale = LimitScale.of(Limit(metric="kl_mean", value=0.01), "t", documents)
    assert np.isnan(scale.figure(documents[3:]))
    assert np.isnan(scale.figure(()))


@pytest.mark.parametrize("limit", [("kl_max", 1.0), ("dp_rms", 0.1), ("kl_mean", 0.0),
                                   ("same_top1", 1.0)])  # fmt: skip
def test_what_no_search_could_be_held_to_is_refused(
    documents: list[DocumentDivergence], limit: tuple[str, float]
) -> None:
    with pytest.raises(UsageError, match=r"not a mean over scored tokens|no divergence is allowed"):
        LimitScale.of(Limit(metric=limit[0], value=limit[1]), "t", documents)


def test_answers_that_are_others_are_counted_whatever_the_order_of_documents() -> None:
    base = table([0.0] * 4, answers=("a", "b", "c", "d"))
    scale = AnswerScale.of_table(Limit(metric="same_answer", value=0.9), base)
    other = table([0.0] * 4, answers=("a", "x", "c", "y"))
    assert scale.values(other, [3, 0, 1]).tolist() == [1.0, 0.0, 1.0]
    assert scale.figure(other) == 0.5
    assert scale.sigma(-scale.scores(scale.values(other, range(4))).mean() / scale.yardstick) == 0.5
    silent = scale.values(table([0.0] * 4), [0])
    assert np.isnan(silent).all()
