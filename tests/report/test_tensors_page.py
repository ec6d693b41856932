"""The page of compared tensors: its table sorts, it hinders nobody, and no name in it acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from accessible import complaints, cut_off
from example_documents import HOSTILE

from evalguard.tensors.tensors_page import render_tensors, render_tensors_page
from evalguard.tensors.tensors_report import (
    DuplicateTensors,
    GreatestDifference,
    InvariantResult,
    InvariantTensor,
    Likeness,
    SideCounts,
    TensorDelta,
    TensorSource,
    TensorsReport,
)
from evalguard.tensors.tolerances import find_tolerance

Opened = Callable[..., Any]


def make_delta(name: str, **changes: Any) -> TensorDelta:
    counts = SideCounts(dtype="float32", shape=(4, 8), zeros=2)
    delta = TensorDelta(
        name=name,
        candidate_name=name,
        state="identical",
        base=counts,
        candidate=counts,
        tolerance=find_tolerance(["float32"]),
        elements=32,
        relative_l2=0.0,
    )
    return replace(delta, **changes)


def make_report(**changes: Any) -> TensorsReport:
    side = TensorSource(name="base", kind="safetensors", files=("a",), tensors=4, nbytes=4000)
    found = GreatestDifference(value=0.00057, index=(3, 4))
    beyond: dict[str, Any] = {
        "state": "beyond", "greatest_absolute": found, "mismatched_absolute": found,
        "mismatched_relative": GreatestDifference(value=float("inf"), index=(0, 1)),
    }  # fmt: skip
    like = Likeness(kind="structure", name="transposed", rule="transpose: [1, 0]", left=0.0)
    report = TensorsReport(
        base=side,
        candidate=replace(side, name="cand"),
        deltas=(
            make_delta("small", mismatched=2, relative_l2=0.01, snr=40.0, **beyond),
            make_delta("large", mismatched=32, relative_l2=1.4, snr=-3.0, likeness=like, **beyond),
            make_delta("none", state="unreadable", fault="the file ends"),
            make_delta("same"),
        ),
        base_only=("gone",),
        duplicates=(DuplicateTensors(side="base", names=("a", "b")),),
        invariants=(),
        caveats=("something to know",),
        version="0",
    )
    return replace(report, **changes)


def rows(page: Any) -> list[str]:
    return [str(text) for text in page.locator("tbody th").all_inner_texts()]


@pytest.mark.slow
def test_every_column_sorts_both_ways_and_says_so(opened: Opened) -> None:
    page = opened(render_tensors_page(make_report()))
    assert rows(page) == ["none", "large", "small", "same"], "the gravest first"
    share = page.get_by_role("button", name="Mismatched")
    share.click()
    assert rows(page)[:2] == ["large", "small"]
    head = page.locator("th", has=share)
    assert head.get_attribute("aria-sort") == "descending"
    share.click()
    assert rows(page) == ["same", "small", "large", "none"], "without a figure it comes last"
    assert head.get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="Tensor", exact=True).click()
    assert rows(page) == ["large", "none", "same", "small"]
    assert head.get_attribute("aria-sort") == "none"
    page.get_by_role("button", name="SNR").click()
    assert rows(page)[:2] == ["small", "large"], "tensors without a figure come last"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_hinders_nobody(opened: Opened, width: int) -> None:
    page = opened(render_tensors_page(make_report()), viewport={"width": width, "height": 800})
    assert cut_off(page) == []
    assert complaints(page) == []


@pytest.mark.slow
def test_no_name_in_the_page_acts(opened: Opened) -> None:
    deltas = tuple(make_delta(name, state="beyond") for name in HOSTILE)
    opened(render_tensors_page(make_report(deltas=deltas, base_only=tuple(HOSTILE))))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_terminal_shows_the_gravest_first_in_any_width(width: int, verbose: bool) -> None:
    text = render_tensors(make_report(), width=width, color=False, verbose=verbose)
    assert " ".join(text.split()).startswith("DIFFERENT: 1 of 4 tensors unreadable, 1 missing")
    assert text.index("none") < text.index("large") < text.index("small")
    assert all(len(line) <= width for line in text.splitlines())
    assert "\x1b" not in text
    assert "\x1b" in render_tensors(make_report(), width=width, color=True)


def test_no_name_acts_on_a_terminal() -> None:
    deltas = tuple(make_delta(name, state="beyond") for name in HOSTILE)
    report = make_report(deltas=deltas, base_only=tuple(HOSTILE), caveats=tuple(HOSTILE))
    text = render_tensors(report, width=80, color=False, verbose=True)
    assert all(char == "\n" or char.isprintable() for char in text)


def test_an_invariant_that_holds_and_one_that_is_broken_are_told_apart() -> None:
    def result(violations: int) -> InvariantResult:
        tensor = InvariantTensor(name="w", elements=1000, violations=violations)
        return InvariantResult(name="sign-consensus", words="all true", tensors=(tensor,))

    clean = make_report(deltas=(make_delta("w"),), base_only=())
    broken = render_tensors(replace(clean, invariants=(result(71),)), width=80, color=False)
    assert broken.startswith("BROKEN: sign-consensus: 71 of 1,000 elements (7.10%); exit code 1")
    holds = render_tensors(replace(clean, invariants=(result(0),)), width=80, color=False)
    assert holds.startswith("HOLDS: sign-consensus in 1 tensor; exit code 0")
