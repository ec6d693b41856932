"""Rows: the time of scoring alone, against lm-eval's HFLM and against the limit."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.speed.body import best_budget, forward, load_body
from benchmarks.speed.row import Row, at_least, at_most
from benchmarks.speed.timing import alternating
from benchmarks.speed.workplace import Workplace

_TARGETS = {"32k": (256, 1.8), "128k": (96, 3.5)}
_CHOICES, _CHOICES_TARGET = 24, 5.0
_FEW_SHOT = 16
_LIMIT_DOCUMENTS, _LIMIT = 512, 1.15


def alone(place: Workplace) -> Iterator[Row]:
    """Last words at two sizes of vocabulary."""
    for shape, (n, target) in _TARGETS.items():
        task = place.lastword(shape, 32 if place.quick else n)
        yield _against_harness(place, shape, task, target, f"scoring alone, {shape} vocabulary")


def multiple_choice(place: Workplace) -> Iterator[Row]:
    """Four continuations of one context."""
    task = place.choice(4 if place.quick else _CHOICES)
    what = "multiple choice, 4 continuations on 200 shared tokens"
    yield _against_harness(place, "32k", task, _CHOICES_TARGET, what)


def few_shot(place: Workplace) -> Iterator[Row]:
    """Four continuations of one token, after examples that all documents begin with."""
    task = place.few_shot(4 if place.quick else _FEW_SHOT)
    what = "few-shot: 1,000 tokens that all documents share, 100 of their own, 4 words"
    yield _against_harness(place, "32k", task, None, what)


def limit(place: Workplace) -> Iterator[Row]:
    """Scoring over the body's forward pass on the same tokens."""
    import torch

    torch.set_num_threads(1)
    task = place.lastword("32k", 64 if place.quick else _LIMIT_DOCUMENTS)
    requests, ours = place.requests(task), place.ours("32k", task)
    sequences, model = ours.fed(requests), load_body(place.model("32k"))
    budget = best_budget(model, sequences)
    spent = alternating(
        {
            "ours": lambda: ours.score(requests),
            "body": lambda: forward(model, sequences, budget),
        },
        1 if place.quick else 5,
    )
    yield at_most(
        spent["ours"].cpu / spent["body"].cpu,
        _LIMIT,
        "x",
        benchmark="scoring over the bare body forward, 32k vocabulary",
        sides=f"scoring {spent['ours'].text}, body {spent['body'].text}",
        how=f"{requests.n_documents} documents, {sum(map(len, sequences)):,} tokens, scoring at "
        f"{ours.token_budget} tokens a pass, body at {budget}; median of {spent['ours'].repeats}",
    )


def _against_harness(
    place: Workplace, shape: str, task: str, target: float | None, what: str
) -> Row:
    requests, ours = place.requests(task), place.ours(shape, task)
    known = dict(place.batch_sizes)
    harness = place.harness(shape, requests)
    size = place.batch_sizes[shape]
    place.batch_sizes.update(known)
    spent = alternating(
        {
            "HFLM": lambda: harness.score(requests),
            "evalguard": lambda: ours.score(requests),
        },
        1 if place.quick else 5,
    )
    ratio = spent["HFLM"].cpu / spent["evalguard"].cpu
    about = {
        "benchmark": what,
        "sides": f"HFLM {spent['HFLM'].text}, evalguard {spent['evalguard'].text}",
        "how": f"{requests.n_documents} documents, HFLM at its best batch size {size}; median of "
        f"{spent['HFLM'].repeats}",
    }
    if target is None:
        return Row(measured=f"{ratio:.1f}x", **about)
    return at_least(ratio, target, **about)
