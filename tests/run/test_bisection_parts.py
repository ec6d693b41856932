"""Parts of the oracle: blocks of documents, typed refusals, batches, doubts about the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_works import block, source, work

from evalguard.bisect.oracle.assigned_candidate import (
    inert_by_readback,
    join_document_blocks,
    same_model,
    settings_off_reference,
)
from evalguard.bisect.oracle.probes import FailureStreak
from evalguard.core.findings import quote_message
from evalguard.core.question import Untestable
from evalguard.core.scorer import ModelDescription, Response, ScoringPolicy
from evalguard.core.settings import Setting, Target, Variant
from evalguard.engine.batches import check_batches, policy_for_ends, uses_batches_of
from evalguard.engine.block_store import UnitAnswer
from evalguard.engine.refusals import refusal_of
from evalguard.engine.slots import FailedWork, FinishedUnit
from evalguard.errors import (
    BuildError,
    EvalguardError,
    EvaluationError,
    FallbackError,
    SettingError,
    StoreError,
    WorkerError,
)
from evalguard.harness.request_blocks import RequestBlock


@pytest.mark.parametrize(
    ("error", "loaded", "kind"),
    [
        (SettingError("no such module"), False, "cannot_build"),
        (BuildError("the recipe failed"), False, "cannot_build"),
        (EvaluationError("x cannot be loaded: KeyError: 'a'"), False, "cannot_build"),
        (EvaluationError("the model failed in loglikelihood: RuntimeError"), True, "crashed"),
        (EvaluationError("OutOfMemoryError: CUDA out of memory"), False, "out_of_memory"),
        (EvaluationError("memory ran out on the smallest batch"), True, "out_of_memory"),
        (FallbackError("no prefixes", giving_up="share_prefixes"), True, "cannot_build"),
        (EvaluationError("OSError: [Errno 12] Cannot allocate memory"), True, "out_of_memory"),
        (WorkerError("was killed by SIGABRT; the end: std::bad_alloc"), True, "out_of_memory"),
        (WorkerError("was killed by SIGSEGV"), True, "crashed"),
        (WorkerError("was killed by SIGKILL", cause="killed"), True, "out_of_memory"),
        (WorkerError("gave no answer within 5 s", cause="late"), True, "timed_out"),
    ],
)
def test_what_goes_wrong_has_a_type(error: EvalguardError, loaded: bool, kind: str) -> None:
    refusal = refusal_of(error, loaded=loaded)
    assert refusal.kind == kind
    assert str(error).startswith(refusal.reason)


def test_a_reason_is_one_line_and_what_the_log_ends_with_says_of_which_kind_it_is() -> None:
    said = "the worker exited with code 1 while loading; its log is w.log"
    last = quote_message("Traceback\nstd::bad_alloc")
    refusal = refusal_of(WorkerError(f"{said}\nmore", log="w.log", quotes=last), loaded=False)
    assert (refusal.reason, refusal.kind) == (said, "out_of_memory")


@pytest.mark.parametrize(
    "error",
    [
        StoreError("cannot write to x: the disk is full"),
        EvaluationError("OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_full_disk_is_no_property_of_an_assignment(error: EvalguardError) -> None:
    with pytest.raises(StoreError):
        refusal_of(error, loaded=True)


def asked(place: int, doc_ids: Sequence[int]) -> RequestBlock:
    return replace(block(place), doc_ids=tuple(doc_ids))


def test_blocks_of_two_kinds_about_the_same_documents_are_answered_together() -> None:
    blocks = [asked(0, [0, 1]), asked(1, [2, 3]), asked(2, [0, 1]), asked(3, [3])]
    found = join_document_blocks(blocks, rows=[0, 1, 2, 3])
    assert [one.blocks for one in found] == [(0, 2), (1, 3)]
    assert [one.documents.tolist() for one in found] == [[0, 1], [2, 3]]
    assert len({one.digest for one in found}) == 2


@given(st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=12))
def test_every_row_is_in_one_document_block_and_every_block_in_one(parts: list[set[int]]) -> None:
    blocks = [asked(place, sorted(ids)) for place, ids in enumerate(parts)]
    rows = sorted(set().union(*parts))[::2]
    found = join_document_blocks(blocks, rows)
    held = sorted(row for one in found for row in one.documents.tolist())
    assert held == list(range(len(rows)))
    places = [place for one in found for place in one.blocks]
    assert len(places) == len(set(places))
    for one in found:
        assert set(one.doc_ids) == set().union(*(parts[place] for place in one.blocks))


def told(**computation: Any) -> ModelDescription:
    usual = {"token_budget": 1024, "shares_prefixes": True, "scorer": "fast"}
    return ModelDescription(model_type="hf", computation={**usual, **computation})


def test_the_plainer_batches_of_both_ends_hold_for_all() -> None:
    ends = [told(), told(token_budget=512, shares_prefixes=False)]
    settled = policy_for_ends(ScoringPolicy(), ends, "hf")
    assert (settled.token_budget, settled.share_prefixes) == (512, False)
    assert uses_batches_of(settled, ends[1])
    assert not uses_batches_of(settled, ends[0])
    assert policy_for_ends(ScoringPolicy(), [told()], "hf").share_prefixes
    assert not policy_for_ends(ScoringPolicy(), [told()], "other").share_prefixes
    assert policy_for_ends(ScoringPolicy(), [told(scorer="harness")], "hf").scorer == "harness"


@pytest.mark.parametrize(
    ("found", "kind", "reason"),
    [
        (told(token_budget=512), "out_of_memory", "memory ran out with batches of 1,024 tokens"),
        (told(shares_prefixes=False), "cannot_build", "it shares no prefixes"),
        (told(scorer="harness"), "cannot_build", "another path to the scores"),
    ],
)
def test_other_batches_are_a_typed_refusal(found: ModelDescription, kind: str, reason: str) -> None:
    settled = policy_for_ends(ScoringPolicy(), [told(), told()], "hf")
    check_batches(settled, told())
    with pytest.raises(Untestable, match=reason) as refused:
        check_batches(settled, found)
    assert refused.value.kind == kind
    assert refused.value.hint


def setting(name: str, target: str, reference: Any, candidate: Any) -> Setting:
    return Setting(name=name, reference=reference, candidate=candidate, target=Target.parse(target))


def test_a_setting_differs_where_the_candidate_stands_elsewhere_than_at_reference() -> None:
    settings = (
        setting("a", "config.a", 1, 2),
        setting("b", "config.b", 1, 2),
        setting("c", "config.c", 1, 1),
        setting("d", "env.D", 1, True),
    )
    variant = Variant(name="m", model="hf", model_args={}, settings=settings, assignment={"b": 1})
    assert [one.name for one in settings_off_reference(variant)] == ["a", "d"]


def test_values_that_read_back_as_one_are_inert_but_for_a_dtype_of_most_weights() -> None:
    settings = (
        setting("a", "attr:x.eps", 1e-6, 1.0000000001e-6),
        setting("b", "attr:x.scale", 1, 2),
        setting("c", "model_args.dtype", "auto", "float32"),
    )
    one = ModelDescription(model_type="hf", effective={"a": 1e-6, "b": 1, "c": "float32"})
    other = replace(one, effective={"a": 1e-6, "b": 2, "c": "float32"})
    assert inert_by_readback(settings, one, other) == ("a",)


def test_identities_prove_one_model_by_what_is_read_back_whatever_settings_are_called() -> None:
    def described(settings: list[Any] | None, **more: Any) -> ModelDescription:
        identity = None if settings is None else {"weights": "w", "settings": settings, **more}
        return ModelDescription(model_type="hf", identity=identity)

    ours = described([["config.eps", 1, 1]])
    assert same_model(ours, described([["config.eps", "1", 1]]))
    assert not same_model(ours, described([["config.eps", 1, 2]]))
    assert not same_model(ours, described([]))
    assert not same_model(ours, described([["config.eps", 1, 1]], dtype="bfloat16"))
    assert not same_model(described(None), described(None))
    assert not same_model(None, ours)


class Control:
    """A runner on which the control fails, or does not."""

    jobs = 1

    def __init__(self, error: EvalguardError | None) -> None:
        self.error = error
        self.runs = 0

    def run(self, works: Any) -> Iterator[Any]:
        self.runs += 1
        (one,) = works
        if self.error is not None:
            yield FailedWork(work=one, error=self.error, loaded=False, seconds=0.0)
            return
        yield FinishedUnit(
            work=one,
            answer=UnitAnswer(unit=one.units[0], responses=[Response()]),
            description=told(),
            seconds=0.0,
        )


def doubtful() -> tuple[FailureStreak, list[int], list[int]]:
    written: list[int] = []
    return FailureStreak(control=source("port"), block=work("port", 1).units[0].block), written, [0]


def test_two_failures_in_a_row_are_believed_once_the_control_runs() -> None:
    suspicion, written, _ = doubtful()
    control: Any = Control(None)
    suspicion.failed(Untestable("a"), lambda: written.append(1))
    suspicion.check(control)
    assert (control.runs, written) == (0, [])
    suspicion.failed(Untestable("b"), lambda: written.append(2))
    suspicion.check(control)
    assert (control.runs, written) == (1, [1, 2])
    suspicion.failed(Untestable("c"), lambda: written.append(3))
    suspicion.failed(Untestable("d"), lambda: written.append(4))
    suspicion.check(control)
    assert control.runs == 1  # more patience than before
    suspicion.succeeded()
    assert written == [1, 2, 3, 4]


def test_where_the_control_fails_too_nothing_is_blamed_and_everything_stops() -> None:
    suspicion, written, _ = doubtful()
    for number in range(2):
        suspicion.failed(Untestable("CUDA error"), lambda n=number: written.append(n))  # type: ignore[misc]
    control: Any = Control(EvaluationError("CUDA error", hint="reset the device"))
    with pytest.raises(EvaluationError, match="the candidate, which was scored before") as stopped:
        suspicion.check(control)
    assert stopped.value.hint == "reset the device"
    assert written == []
