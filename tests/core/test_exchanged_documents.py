"""Documents in another order, told from the numbers of both sides alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evalguard.core.exchanged_documents import DocumentOrder
from evalguard.errors import MisalignedRunsError

Array = NDArray[Any]
DRAW = np.random.default_rng(3)
DOCUMENTS = list(DRAW.standard_normal((6, 5, 8)) + 40.0)  # with much that all have in common


def exchanged(base: list[Array], candidate: list[Array]) -> list[tuple[int, int]]:
    order = DocumentOrder()
    for one, other in zip(base, candidate, strict=True):
        order.add(one, other)
    return order.exchanged()


def noisy(documents: list[Array], size: float) -> list[Array]:
    return [one + size * DRAW.standard_normal(one.shape) for one in documents]


def moved(documents: list[Array], *numbers: int) -> list[Array]:
    return [documents[one] for one in numbers]


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((1, 0, 2, 3, 4, 5), [(0, 1), (1, 0)]),
        ((5, 1, 2, 3, 4, 0), [(0, 5), (5, 0)]),
        ((1, 2, 0, 3, 4, 5), [(0, 1), (1, 2), (2, 0)]),
        ((1, 2, 3, 4, 5, 0), [(n, (n + 1) % 6) for n in range(6)]),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.1])
def test_documents_in_another_order_are_found_behind_a_rounding(
    numbers: tuple[int, ...], found: list[tuple[int, int]], noise: float
) -> None:
    assert exchanged(DOCUMENTS, noisy(moved(DOCUMENTS, *numbers), noise)) == found


def test_a_list_that_begins_one_document_later_or_earlier_is_found_to_its_end() -> None:
    later = [*DOCUMENTS[1:], *DRAW.standard_normal((1, 5, 8))]
    assert exchanged(DOCUMENTS, later) == [(n, n + 1) for n in range(5)]
    earlier = moved(DOCUMENTS, 0, 0, 1, 2, 3, 4)
    assert exchanged(DOCUMENTS, earlier) == [(n + 1, n) for n in range(5)]


def test_two_classes_are_exchanged_only_where_the_numbers_are_nearly_the_same() -> None:
    base = [np.array([[1.3, -0.7]]), np.array([[-0.9, 1.1]])]
    assert exchanged(base, base[::-1]) == [(0, 1), (1, 0)]
    assert exchanged(base, [one[:, ::-1] for one in base]) == []  # labels that are flipped


@pytest.mark.parametrize(
    "candidate",
    [
        DOCUMENTS,
        noisy(DOCUMENTS, 0.3),
        noisy(DOCUMENTS, 30.0),
        [-one for one in DOCUMENTS],
        [one[::-1] for one in DOCUMENTS],
        [DOCUMENTS[0]] * 6,  # a model that answers everything alike
        [np.full_like(one, np.nan) for one in DOCUMENTS],
        list(DRAW.standard_normal((6, 5, 8))),
    ],
)
def test_faults_of_a_model_are_no_exchange(candidate: list[Array]) -> None:
    assert exchanged(DOCUMENTS, candidate) == []


def test_documents_that_are_alike_can_be_exchanged_without_a_word() -> None:
    alike = [DOCUMENTS[0], DOCUMENTS[0], *DOCUMENTS[1:]]
    assert exchanged(alike, moved(alike, 1, 0, 2, 3, 4, 5, 6)) == []


def test_hundreds_of_single_numbers_meet_by_chance_and_are_no_exchange() -> None:
    base = list(DRAW.standard_normal((500, 1)))
    assert exchanged(base, list(DRAW.standard_normal((500, 1)))) == []


def test_shapes_keep_documents_apart() -> None:
    base = [*DOCUMENTS[:2], DRAW.standard_normal((3, 8))]
    assert exchanged(base, moved(base, 1, 0, 2)) == [(0, 1), (1, 0)]


def test_the_refusal_names_the_first_and_counts_them() -> None:
    order = DocumentOrder()
    for one, other in zip(DOCUMENTS, moved(DOCUMENTS, 0, 2, 1, 3, 4, 5), strict=True):
        order.add(one, other)
    words = "exchanged: d1 of port is as d2 of orig and not as its own, one of 2 of 6"
    with pytest.raises(MisalignedRunsError, match=words):
        order.refuse_exchanged([f"d{n}" for n in range(6)], ("orig", "port"), "")
