"""Blocks: whole documents, each a fair sample as to length, cut at the same places always."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_tasks import build, render_chat

from evalguard.core.scorer import Request, Response
from evalguard.harness.request_blocks import BlockCut, RequestBlock, cut_blocks, text_lengths
from evalguard.harness.requests import TaskRequests, documents_of, random_subset
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks


def texts(*lengths: int, choices: int = 1) -> tuple[Request, ...]:
    """Requests of documents whose texts have these numbers of characters."""
    return tuple(
        Request(task="t", doc_id=d, index=i, kind="loglikelihood", arguments=("x" * n, ""))
        for d, n in enumerate(lengths)
        for i in range(choices)
    )


def cut(requests: tuple[Request, ...], rule: BlockCut, drawn_from: int = 0) -> list[RequestBlock]:
    return cut_blocks(requests, text_lengths(requests), rule, drawn_from=drawn_from)


def of_size(size: int, window: int) -> BlockCut:
    return BlockCut(window=window, fewest=size, most=size)


def test_runs_of_neighbours_of_a_sorted_window_are_dealt_back_and_forth() -> None:
    requests = texts(3, 9, 1, 7, 5, 5, 20, 2)
    blocks = cut(requests, of_size(2, 6))
    # by length 1 3 | 4 5 0 | 2, and of 20 and 2 one block
    assert [block.doc_ids for block in blocks] == [(1, 2), (0, 3), (4, 5), (6, 7)]
    sixteen = cut(texts(*range(16, 0, -1)), BlockCut(window=16, fewest=8, most=8))
    assert sixteen[0].doc_ids == (0, 3, 4, 7, 8, 11, 12, 15)
    pairs = cut(texts(*range(64, 0, -1)), BlockCut(fewest=32, most=32))
    assert pairs[0].doc_ids[:10] == (0, 1, 6, 7, 8, 9, 14, 15, 16, 17)


def test_the_longest_document_is_in_the_first_block() -> None:
    longest = [
        max(len(str(r.arguments[0])) for r in block.requests)
        for block in cut(texts(*(7 * i % 101 for i in range(300))), BlockCut())
    ]
    assert longest[0] == max(longest) == 100


def test_documents_of_equal_length_and_those_of_one_block_keep_their_order() -> None:
    assert [b.doc_ids for b in cut(texts(5, 5, 5, 5), of_size(2, 4))] == [(0, 3), (1, 2)]
    assert [b.doc_ids for b in cut(texts(1, 2, 3), of_size(8, 8))] == [(0, 1, 2)]


@st.composite
def some_lengths(draw: st.DrawFn, fewest: int, most: int) -> list[int]:
    """Characters of documents: alike, equal, or with a long tail."""
    n = draw(st.integers(fewest, most))
    spread = draw(st.sampled_from([0.0, 0.2, 1.5]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return [int(length) for length in rng.lognormal(4.0, spread, size=n)]


@settings(deadline=None, max_examples=40)
@given(some_lengths(1, 2600))
def test_blocks_have_a_sixteenth_of_the_documents_within_bounds(lengths: list[int]) -> None:
    rule, n = BlockCut(), len(lengths)
    blocks = cut(texts(*lengths), rule)
    assert sorted(chain.from_iterable(b.doc_ids for b in blocks)) == list(range(n))
    sizes = [len(block.doc_ids) for block in blocks]
    if n < 16:
        assert sizes == [n]
    if n % 1024 == 0 or n % 1024 >= 16:  # the last window has documents for a block
        assert 16 <= min(sizes) <= max(sizes) <= 128
    if 256 <= n <= 1024:
        assert len(blocks) in (15, 16)
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("n", "sizes"), [(1024, {64}), (4096, {64, 128}), (5153, {33, 64, 128})])
def test_later_windows_have_larger_blocks(n: int, sizes: set[int]) -> None:
    blocks = cut(texts(*(i * i % 977 for i in range(n))), BlockCut())
    assert {len(block.doc_ids) for block in blocks} == sizes


@settings(deadline=None, max_examples=20)
@given(some_lengths(256, 1100))
def test_every_block_has_the_lengths_of_its_window(lengths: list[int]) -> None:
    """No more of a block than two of its 16 strata can be on the wrong side of any length."""
    for block in cut(texts(*lengths), BlockCut()):
        window = np.array(lengths[:1024] if block.doc_ids[0] < 1024 else lengths[1024:])
        ours = np.array([lengths[doc_id] for doc_id in block.doc_ids])
        if len(window) < 256:
            continue
        for length in set(lengths):
            assert abs((ours <= length).mean() - (window <= length).mean()) <= 1 / 8 + 1e-9


def test_the_mean_length_of_every_block_is_its_windows() -> None:
    rng = np.random.default_rng(11)
    lengths = rng.lognormal(5.5, 0.4, size=1024).astype(int)
    means = [lengths[list(b.doc_ids)].mean() for b in cut(texts(*lengths.tolist()), BlockCut())]
    drawn = lengths.std() / np.sqrt(64)  # the standard error of as many at random
    assert np.std(means) < drawn / 2


def test_the_longest_request_is_a_documents_length_and_other_arguments_have_none() -> None:
    kinds = [("ab", "c"), ("abcd", "e"), ("a", {"until": ["a long text that ends it"]})]
    requests = [
        Request(task="t", doc_id=min(place, 1), index=place, kind="generate_until", arguments=of)
        for place, of in enumerate(kinds)
    ]
    assert text_lengths(requests) == {0: 3, 1: 5}


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(1, 40), st.integers(1, 3)
)
def test_a_limit_of_whole_windows_shares_its_blocks_with_the_full_run(
    lengths: list[int], window: int, fewest: int
) -> None:
    rule = BlockCut(window=window, fewest=fewest, most=4 * fewest)
    whole = [block.digest for block in cut(texts(*lengths), rule)]
    limit = len(lengths) // window * window
    some = [block.digest for block in cut(texts(*lengths[:limit]), rule)]
    assert some == whole[: len(some)]


def test_drawn_documents_are_cut_as_many_as_those_they_were_drawn_from() -> None:
    of_all = [len(block.doc_ids) for block in cut(texts(*range(256)), BlockCut(), 5153)]
    assert of_all == [128, 128]


def test_a_documents_requests_of_every_kind_are_in_blocks_of_the_same_documents() -> None:
    asked = texts(*(i * 37 % 91 for i in range(200)))
    written = [replace(r, kind="generate_until", index=1) for r in asked]
    blocks = cut((*asked, *written), BlockCut())
    half = len(blocks) // 2
    assert [b.doc_ids for b in blocks[:half]] == [b.doc_ids for b in blocks[half:]]


def test_block_digests_cover_the_whole_content(task_folder: Path) -> None:
    requests = build(task_folder, "eg_choice")
    blocks = requests.blocks(of_size(7, 14))
    assert [block.index for block in blocks] == [0, 1, 2]
    assert [len(block.doc_ids) for block in blocks] == [7, 7, 10]
    assert len({block.digest for block in blocks}) == 3
    again = build(task_folder, "eg_choice").blocks(of_size(7, 14))
    assert [block.digest for block in blocks] == [block.digest for block in again]
    context = str(requests.requests[0].arguments[0])
    changed = replace(requests.requests[0], arguments=(context[::-1], " yes"))
    other = replace(requests, requests=(changed, *requests.requests[1:])).blocks(of_size(7, 14))
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
    documents = [[block.doc_ids for block in of.blocks(of_size(5, 15))] for of in (ours, theirs)]
    assert documents[0] == documents[1]


def test_drawn_documents_know_of_how_many_and_a_sample_is_a_whole_of_its_own(
    task_folder: Path,
) -> None:
    requests = build(task_folder, "eg_lastword")
    drawn = documents_of(requests, [3, 19, 8, 5])
    assert (requests.drawn_from, drawn.drawn_from) == (0, requests.n_documents)
    assert documents_of(drawn, [3, 8]).drawn_from == requests.n_documents
    assert random_subset(requests, 5, seed=1).drawn_from == 0


@pytest.mark.parametrize("given", [{"window": 0}, {"fewest": 0}, {"most": 8}, {"share": 0}])
def test_a_block_of_no_documents_is_an_error(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockCut(**given)


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
@given(mixed_requests(), st.integers(1, 9), st.integers(1, 20))
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
    blocks = task_requests.blocks(BlockCut(window=window, fewest=size, most=2 * size))
    asked = list(chain.from_iterable(block.requests for block in blocks))
    assert len(asked) == len(requests)
    assert set(asked) == set(requests)
    for block in blocks:
        assert {request.kind for request in block.requests} == {block.kind}
        assert len(set(block.doc_ids)) == len(block.doc_ids) <= 2 * size
        assert {request.doc_id for request in block.requests} == set(block.doc_ids)
    answers = {(r.doc_id, r.index): Response(text=f"{r.doc_id} {r.index}") for r in asked}
    assert [answer.text for answer in task_requests.in_order(answers)] == [
        f"{r.doc_id} {r.index}" for r in requests
    ]
