"""Documents that loop or do not, under greedy answers: who makes them, on as few as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from planted_scores import named

from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.bisect.search.search_result import BisectResult

FLAGS = tuple(f"flag{number}" for number in range(8))


class Looping:
    """``loops``: flags that act together, and the documents that loop where all of them are in.

    ``ties``: documents of near ties: half of them loop, other ones under every assignment.
    """

    def __init__(
        self,
        n: int,
        loops: Mapping[tuple[str, ...], Sequence[int]],
        *,
        ties: Sequence[int] = (),
        seed: int = 7,
    ) -> None:
        self.n_documents, self.asked = n, 0
        self._loops, self._ties = loops, np.array(ties, dtype=np.intp)
        self._seed = seed

    def measure(
        self, candidate_settings: frozenset[str], documents: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """-1 of every document that loops."""
        if 0 < len(candidate_settings) < len(FLAGS):  # the ends are known before
            self.asked += documents.size
        found = np.zeros(self.n_documents)
        for flags, where in self._loops.items():
            if candidate_settings.issuperset(flags):
                found[list(where)] = -1.0
        if self._ties.size:
            words = [self._seed, *sorted(int(name[4:]) for name in candidate_settings)]
            fair = np.random.default_rng(words).random(self._ties.size) < 0.5
            found[self._ties] = np.where(fair, -1.0, 0.0)
        return found[documents]


def searched(oracle: Looping, *, tolerated: float, seed: int = 0) -> BisectResult:
    """``tolerated``: documents that may loop."""
    share = tolerated / oracle.n_documents
    return find_culprits(oracle, FLAGS, margin=1.0, yardstick=share, seed=seed, counted=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("guilty", ["flag0", "flag5"])
def test_the_flag_that_makes_5_of_15_loop_is_named_on_a_third_of_what_one_at_a_time_asks(
    guilty: str, seed: int
) -> None:
    oracle = Looping(15, {(guilty,): [1, 4, 5, 9, 13]})
    result = searched(oracle, tolerated=2.5, seed=seed)
    assert (result.status, named(result)) == ("minimal", {guilty})
    assert result.eliminated
    assert oracle.asked <= 15 * len(FLAGS) / 3.0


@pytest.mark.parametrize("documents", [1, 2, 4])
def test_so_few_documents_that_no_test_could_blame_them_are_suspected_and_soon_left(
    documents: int,
) -> None:
    oracle = Looping(40, {("flag3",): range(documents)})
    result = searched(oracle, tolerated=documents / 2.0)
    assert (result.status, result.culprits) == ("unexplained", ())
    assert [one.name for one in result.suspects] == ["flag3"]
    assert result.suspects[0].p_value == pytest.approx(0.5 ** (documents + 1))  # McNemar's mid-p
    assert oracle.asked <= 40 * 4


def test_two_that_loop_only_together_are_both_named_by_the_same_5_documents() -> None:
    result = searched(Looping(15, {("flag2", "flag6"): [0, 3, 7, 8, 12]}), tolerated=2.5)
    assert (result.status, named(result)) == ("minimal", {"flag2", "flag6"})


def test_flags_that_make_one_document_loop_each_are_not_named_beside_the_guilty_one() -> None:
    strays = {("flag1",): [20], ("flag2",): [21], ("flag7",): [22]}
    loops: dict[tuple[str, ...], Sequence[int]] = {("flag4",): range(12), **strays}
    result = searched(Looping(60, loops), tolerated=4.5)
    assert (result.status, named(result)) == ("minimal", {"flag4"})


def test_near_ties_that_every_assignment_decides_anew_blame_next_to_nobody() -> None:
    runs = [
        searched(Looping(60, {}, ties=range(16), seed=seed), tolerated=1.5) for seed in range(12)
    ]
    assert sum(bool(run.culprits) for run in runs) <= 1


def test_what_others_put_right_stands_against_a_culprit() -> None:
    class Repairing(Looping):
        """The base loops on documents that flag0 to flag2 each put one of right."""

        def measure(
            self, candidate_settings: frozenset[str], documents: NDArray[np.intp]
        ) -> NDArray[np.float64]:
            found = super().measure(candidate_settings, np.arange(self.n_documents))
            found[50:53] = [-(f"flag{at}" not in candidate_settings) for at in range(3)]
            return found[documents]

    result = searched(Repairing(60, {("flag6",): range(7)}), tolerated=1.0)
    assert not result.culprits
    (suspect,) = [one for one in result.suspects if one.name == "flag6"]
    assert suspect.p_value == pytest.approx(0.113, abs=0.001)  # 7 worse, 3 better
