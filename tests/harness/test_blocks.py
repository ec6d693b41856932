"""Blocks: whole documents of similar length, cut at the same places whatever the limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_tasks import render_chat

from evalguard.harness import Block, TaskOptions, TaskRequests, load_tasks
from evalguard.harness.blocks import cut_blocks, text_lengths
from evalguard.harness.subset import documents_of
from evalguard.scorer import Request, Response


def build(folder: Path, name: str, **options: object) -> TaskRequests:
    chosen = TaskOptions(include_paths=(folder,), **options)  # type: ignore[arg-type]
    return load_tasks([name], options=chosen).requests(name)


def texts(*lengths: int, choices: int = 1) -> tuple[Request, ...]:
    """Requests of documents whose texts have these numbers of characters."""
    return tuple(
        Request(task="t", doc_id=d, index=i, kind="loglikelihood", arguments=("x" * n, ""))
        for d, n in enumerate(lengths)
        for i in range(choices)
    )


def cut(requests: tuple[Request, ...], size: int, window: int) -> list[Block]:
    return cut_blocks(requests, text_lengths(requests), size=size, window=window)


def test_a_window_of_documents_is_sorted_by_length_and_the_longest_come_first() -> None:
    requests = texts(3, 9, 1, 7, 5, 5, 20, 2)
    blocks = cut(requests, 2, 6)
    assert [block.doc_ids for block in blocks] == [(1, 3), (4, 5), (0, 2), (6, 7)]


def test_documents_of_equal_length_and_those_of_one_block_keep_their_order() -> None:
    assert [b.doc_ids for b in cut(texts(5, 5, 5, 5), 2, 4)] == [(0, 1), (2, 3)]
    assert [b.doc_ids for b in cut(texts(1, 2, 3), 8, 8)] == [(0, 1, 2)]


def test_the_longest_request_is_a_documents_length_and_other_arguments_have_none() -> None:
    kinds = [("ab", "c"), ("abcd", "e"), ("a", {"until": ["a long text that ends it"]})]
    requests = [
        Request(task="t", doc_id=min(place, 1), index=place, kind="generate_until", arguments=of)
        for place, of in enumerate(kinds)
    ]
    assert text_lengths(requests) == {0: 3, 1: 5}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 5))
def test_a_limit_of_whole_windows_shares_its_blocks_with_the_full_run(
    lengths: list[int], size: int, per_window: int
) -> None:
    window = size * per_window
    whole = [block.digest for block in cut(texts(*lengths), size, window)]
    limit = len(lengths) // window * window
    some = [block.digest for block in cut(texts(*lengths[:limit]), size, window)]
    assert some == whole[: len(some)]


def test_block_digests_cover_the_whole_content(task_folder: Path) -> None:
    requests = build(task_folder, "eg_choice")
    blocks = requests.blocks(7, window=14)
    assert [block.index for block in blocks] == [0, 1, 2, 3]
    assert [len(block.doc_ids) for block in blocks] == [7, 7, 7, 3]
    assert len({block.digest for block in blocks}) == 4
    again = build(task_folder, "eg_choice").blocks(7, window=14)
    assert [block.digest for block in blocks] == [block.digest for block in again]
    context = str(requests.requests[0].arguments[0])
    changed = replace(requests.requests[0], arguments=(context[::-1], " yes"))
    other = replace(requests, requests=(changed, *requests.requests[1:])).blocks(7, window=14)
    assert [a.digest == b.digest for a, b in zip(blocks, other, strict=True)] == [
        0 not in block.doc_ids for block in blocks
    ]


def test_models_with_templates_of_their_own_have_the_same_documents_in_a_block(
    task_folder: Path,
) -> None:
    options = TaskOptions(include_paths=(task_folder,), apply_chat_template=True)
    tasks = load_tasks(["eg_lastword"], options=options)

    def turned(messages: object, add_generation_prompt: bool) -> str:
        return "y" * (1000 - len(str(messages)))

    ours = tasks.requests("eg_lastword", render_chat=render_chat)
    theirs = tasks.requests("eg_lastword", render_chat=turned)
    assert text_lengths(ours.requests) != text_lengths(theirs.requests)
    documents = [[block.doc_ids for block in of.blocks(5, window=15)] for of in (ours, theirs)]
    assert documents[0] == documents[1]


def test_drawn_documents_are_sorted_among_themselves(task_folder: Path) -> None:
    requests = build(task_folder, "eg_lastword")
    drawn = documents_of(requests, [3, 19, 8, 5])
    lengths = text_lengths(drawn.requests)
    first, second = drawn.blocks(2, window=4)
    assert min(lengths[d] for d in first.doc_ids) >= max(lengths[d] for d in second.doc_ids)


@pytest.mark.parametrize(("size", "window"), [(0, 4), (4, 0)])
def test_a_block_of_no_documents_is_an_error(size: int, window: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cut(texts(1, 2), size, window)


@st.composite
def mixed_requests(draw: st.DrawFn) -> tuple[Request, ...]:
    documents = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    kinds = draw(st.sampled_from([("loglikelihood",), ("generate_until", "loglikelihood")]))
    counts = [0] * len(documents)
    requests = []
    for kind in kinds:
        for doc_id, n in enumerate(documents):
            for _ in range(n):
                text = "x" * draw(st.integers(0, 9))
                requests.append(
                    Request(
                        task="t", doc_id=doc_id, index=counts[doc_id], kind=kind, arguments=(text,)
                    )
                )
                counts[doc_id] += 1
    return tuple(requests)


@settings(deadline=None)
@given(mixed_requests(), st.integers(1, 20), st.integers(1, 20))
def test_every_request_is_in_one_block_and_its_answer_finds_its_place(
    requests: tuple[Request, ...], size: int, window: int
) -> None:
    task_requests = TaskRequests(
        task="t",
        requests=requests,
        doc_ids=tuple(sorted({r.doc_id for r in requests})),
        n_total=20,
        run={},
        lm_eval_task=None,  # type: ignore[arg-type]
        instances=(),
        documents={},
    )
    blocks = task_requests.blocks(size, window=window)
    asked = list(chain.from_iterable(block.requests for block in blocks))
    assert len(asked) == len(requests)
    assert set(asked) == set(requests)
    for block in blocks:
        assert {request.kind for request in block.requests} == {block.kind}
        assert len(set(block.doc_ids)) == len(block.doc_ids) <= size
        assert {request.doc_id for request in block.requests} == set(block.doc_ids)
    answers = {(r.doc_id, r.index): Response(text=f"{r.doc_id} {r.index}") for r in asked}
    assert [answer.text for answer in task_requests.in_order(answers)] == [
        f"{r.doc_id} {r.index}" for r in requests
    ]
