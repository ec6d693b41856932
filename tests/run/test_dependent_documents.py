"""Dependent documents are said on the first screen, with the field that they share."""

from __future__ import annotations

import numpy as np
import pytest

from evalguard.core.document_fields import read_fields
from evalguard.core.paired_scores import PairedScores
from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.run.scoring.dependent_documents import find_dependent_documents
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.judgement import MetricComparison

N, GROUP = 1_200, 20
RNG = np.random.default_rng(20)
BASE = RNG.normal(-1.5, 1.0, N)
SHARED = RNG.normal(0.0, 0.2, N // GROUP)
IN_ORDER = np.arange(N) // GROUP
SHUFFLED = RNG.permutation(IN_ORDER)
FIELDS = {
    "passages": read_fields(
        {
            i: {"passage": f"text {group}", "id": i, "kind": i % 3, "page": i // 7}
            for i, group in enumerate(SHUFFLED.tolist())
        }
    )
}


def paired(base: np.ndarray, candidate: np.ndarray, kind: str, **fields: object) -> PairedScores:
    hashes = tuple(map(str, range(N)))
    tables = [
        ScoreTable(
            task="passages", filter="none", metric="acc" if kind == "mean" else kind,
            aggregation=kind, higher_is_better=kind == "mean", doc_ids=np.arange(N), values=values,
            doc_hashes=hashes, prompt_hashes=hashes, target_hashes=hashes, **fields,
        )
        for values in (base, candidate)
    ]  # fmt: skip
    return pair(*tables)


def compared(candidate: np.ndarray, **fields: object) -> MetricComparison:
    return compare_documents(paired(BASE, candidate, "perplexity", **fields))


def test_documents_of_one_passage_are_named_with_the_option() -> None:
    (found,) = find_dependent_documents([compared(BASE - SHARED[SHUFFLED])], FIELDS)
    assert (found.kind, found.task, found.metric) == (
        "dependent_documents", "passages", "perplexity",
    )  # fmt: skip
    assert found.values["field"] == "passage"
    assert found.values["groups"] == N // GROUP
    assert found.values["effective_n"] == pytest.approx(N / GROUP, rel=0.1)
    assert "--cluster passage takes it into account" in found.text
    assert "p and interval do not hold" in found.text


def test_a_field_whose_documents_stand_together_is_preferred_to_their_order() -> None:
    fields = {"passages": read_fields({i: {"story": i // GROUP} for i in range(N)})}
    (found,) = find_dependent_documents([compared(BASE - SHARED[IN_ORDER])], fields)
    assert found.values["field"] == "story"


def test_without_a_field_that_fits_the_order_alone_is_said() -> None:
    (found,) = find_dependent_documents([compared(BASE - SHARED[IN_ORDER])], {})
    assert found.values["field"] == ""
    assert "no field accounts for it" in found.text
    assert "--cluster" not in found.text


def test_what_is_clustered_already_is_not_said_again() -> None:
    labels = tuple(str(group) for group in SHUFFLED)
    one = compared(BASE - SHARED[SHUFFLED], clusters=labels, cluster_field="passage")
    assert find_dependent_documents([one], FIELDS) == ()


def test_clusters_that_drift_alike_with_their_neighbours_are_said() -> None:
    labels = tuple(str(i // 4) for i in range(N))
    one = compared(BASE - SHARED[IN_ORDER], clusters=labels, cluster_field="item")
    (found,) = find_dependent_documents([one], {})
    assert found.text.startswith("neighbouring clusters drift alike: 300 count like")


def test_several_metrics_of_one_field_are_one_line() -> None:
    first, second = compared(BASE - SHARED[SHUFFLED]), compared(BASE - 2.0 * SHARED[SHUFFLED])
    (found,) = find_dependent_documents([first, second], FIELDS)
    assert "(1 more metric alike)" in found.text
    assert len(found.values["metrics"]) == 2


def test_independent_documents_bit_identical_ones_and_flips_have_no_line() -> None:
    right = (RNG.random(N) < 0.6).astype(float)
    flipped = np.where(RNG.random(N) < 0.1, 1.0 - right, right)
    quiet = [
        compared(BASE + RNG.normal(0.0, 0.1, N)),
        compared(BASE),
        compare_documents(paired(right, flipped, "mean")),
    ]
    assert find_dependent_documents(quiet, FIELDS) == ()


def test_the_line_fits_two_lines_of_a_terminal() -> None:
    (found,) = find_dependent_documents([compared(BASE - SHARED[IN_ORDER])], {})
    assert len(f"Note: passages perplexity: {found.text}") <= 156
