"""Two models that compute at the same time: nobody can tell from their scores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_requests import pair_requests, rolling_requests
from nudged_copies import nudged
from opened_models import open_hf

from evalguard.core.scorer import ComparedAnswer, Request, Response
from evalguard.errors import EvaluationError
from evalguard.models.hf import side_by_side
from evalguard.models.hf.lockstep import score_in_lockstep
from evalguard.models.hf.side_by_side import computed_beside, threads_side_by_side
from evalguard.models.lm_scorer import LMScorer

TASKS: dict[str, Callable[[], list[Request]]] = {
    "choice": pair_requests, "text": rolling_requests
}  # fmt: skip
Compared = tuple[list[Response], list[Response], ComparedAnswer]


def compared(base: LMScorer, candidate: LMScorer, requests: list[Request], by: int) -> Compared:
    return score_in_lockstep(base, candidate, requests, requests, seed=1, beside=by)


def numbers(found: Compared) -> list[Any]:
    ours, theirs, answer = found
    likelihoods = [(r.loglikelihood, r.is_greedy) for r in (*ours, *theirs)]
    kl = [None if one is None else one.kl.tobytes() for one in answer.divergences]
    return [likelihoods, kl, answer.reason]


@pytest.fixture
def pair(tiny_llama: Path, other_llama: Path) -> tuple[LMScorer, LMScorer]:
    return open_hf(tiny_llama), open_hf(other_llama)


@pytest.fixture(scope="session")
def other_llama(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nudged(tiny_llama, tmp_path_factory.mktemp("beside") / "model")


def at_each_pass(scorer: LMScorer, do: Callable[[], object]) -> None:
    module = scorer.module
    assert module is not None
    module.register_forward_pre_hook(lambda *_: (do(), None)[1])


@pytest.mark.parametrize("task", TASKS)
def test_scores_and_divergences_are_those_by_turns_to_the_last_bit(
    task: str, pair: tuple[LMScorer, LMScorer]
) -> None:
    requests = TASKS[task]()
    assert numbers(compared(*pair, requests, 1)) == numbers(compared(*pair, requests, 0))


def test_each_model_computes_in_a_thread_of_its_own(pair: tuple[LMScorer, LMScorer]) -> None:
    seen: tuple[set[str], set[str]] = (set(), set())
    for scorer, threads in zip(pair, seen, strict=True):
        at_each_pass(scorer, lambda threads=threads: threads.add(threading.current_thread().name))  # type: ignore[misc]
    compared(*pair, rolling_requests(), 1)
    assert "side by side" in seen[1]
    assert "side by side" not in seen[0]
    assert all(thread.name != "side by side" for thread in threading.enumerate())


def test_models_that_draw_random_numbers_are_scored_again_by_turns(
    pair: tuple[LMScorer, LMScorer],
) -> None:
    requests = rolling_requests()
    expected = numbers(compared(*pair, requests, 0))
    passes: list[str] = []
    at_each_pass(pair[1], lambda: (torch.rand(1), passes.append(threading.current_thread().name)))
    assert numbers(compared(*pair, requests, 1)) == expected
    half = len(passes) // 2
    assert passes == ["side by side"] * half + [threading.main_thread().name] * half


@pytest.mark.parametrize("side", [0, 1])
def test_a_model_that_fails_fails_as_by_turns(side: int, pair: tuple[LMScorer, LMScorer]) -> None:
    def fail() -> None:
        raise ValueError("broken weights")

    at_each_pass(pair[side], fail)
    with pytest.raises(EvaluationError, match="broken weights"):
        compared(*pair, rolling_requests(), 1)
    assert all(thread.name != "side by side" for thread in threading.enumerate())


def test_an_interrupted_pass_leaves_no_thread(pair: tuple[LMScorer, LMScorer]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_each_pass(pair[0], interrupt)
    with pytest.raises(KeyboardInterrupt):
        compared(*pair, rolling_requests(), 1)
    assert all(thread.name != "side by side" for thread in threading.enumerate())


def test_a_stream_is_taken_in_order_and_one_item_ahead() -> None:
    made: list[int] = []

    def stream() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            yield number

    with computed_beside(stream(), threads=1) as items:
        for number in items:
            # it, one that waits for room, one that is there
            assert len(made) <= number + 3
    assert made == [0, 1, 2, 3, 4]


def test_what_is_left_of_a_stream_is_not_computed() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    with computed_beside(endless(), threads=1) as items:
        assert next(items) == 1


def module(device: str = "cpu") -> torch.nn.Module:
    return torch.nn.Linear(1, 1, device=device)


@pytest.mark.parametrize(
    ("threads", "cores", "expected"),
    [((1, 1), 2, 1), ((2, 2), 4, 2), ((2, 2), 3, 0), ((1, 2), 8, 0), ((1, 1), 1, 0)],
)
def test_they_are_side_by_side_where_one_leaves_as_many_cores_idle(
    threads: tuple[int, int], cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)
    assert threads_side_by_side((module(), module()), threads) == expected


def test_one_model_or_one_on_another_device_has_none_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 8)
    same = module()
    assert threads_side_by_side((same, same), (1, 1)) == 0
    assert threads_side_by_side((module(), None), (1, 1)) == 0
    assert threads_side_by_side((module(), module("meta")), (1, 1)) == 0


class Remote(torch.nn.Linear):
    """Code that comes with a checkpoint."""


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.append(Remote(1, 1)),
        lambda model: model[0].register_forward_hook(lambda *_: None),
        lambda model: model[0].register_forward_pre_hook(lambda *_: None),
        lambda model: setattr(model[0], "forward", lambda rows: rows),
    ],
    ids=["module", "hook", "pre-hook", "forward"],
)
@pytest.mark.parametrize("side", [0, 1])
def test_code_that_is_of_no_library_has_nothing_beside_it(
    change: Callable[[torch.nn.Sequential], object], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 8)
    models = torch.nn.Sequential(module()), torch.nn.Sequential(module())
    assert threads_side_by_side(models, (1, 1)) == 1
    change(models[side])
    assert threads_side_by_side(models, (1, 1)) == 0
