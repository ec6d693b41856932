"""References and divergences travel in pieces, and arrive to the last bit."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from record_examples import a_reference, rows, same

from evalguard.core.codec import PlainError, codec_of
from evalguard.core.divergence import divergence, divergence_from
from evalguard.core.scorer import ComparedAnswer, Request, Response
from evalguard.errors import WorkerError
from evalguard.worker import pieces as parcels
from evalguard.worker.messages import (
    DIVERGENCE,
    REFERENCE,
    Call,
    ChunkedAnswer,
    ComparisonCall,
    ReferenceCall,
)
from evalguard.worker.pieces import RecordChunks, join_chunks
from evalguard.worker.server import DistributionCalls

FLOATS = codec_of(NDArray[np.float64])


def over_the_pipe(codec: Any, value: Any) -> Any:
    return codec.decode(json.loads(json.dumps(codec.encode(value))))


def test_records_survive_the_pipe_to_the_last_bit() -> None:
    kept = a_reference(5)
    exact = divergence(rows(5, 1), rows(5, 2), kept.token_ids)
    estimated = divergence_from(kept, rows(5, 2))
    assert same(over_the_pipe(REFERENCE, kept), kept)
    for found in (exact, estimated):
        odd = dataclasses.replace(found, kl=np.array([np.nan, -np.inf, np.inf, -0.0, 5e-324]))
        assert same(over_the_pipe(DIVERGENCE, odd), odd)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "found list"),
        ({"shape": [2], "data": "AAAA"}, "3 bytes of shape"),
        ({"shape": [-1], "data": ""}, "0 bytes of shape"),
        ({"shape": [1, 1], "data": "AAAAAAAAAAA="}, "of shape"),
        ({"shape": [1], "data": "!"}, "not base64"),
        ({"data": ""}, "expected an array of float64"),
    ],
)
def test_a_damaged_array_is_refused(value: Any, message: str) -> None:
    with pytest.raises(PlainError, match=message):
        FLOATS.decode(value)


def test_an_array_of_another_type_does_not_travel() -> None:
    with pytest.raises(PlainError, match="found one of float32 with 1"):
        FLOATS.encode(np.zeros(2, dtype=np.float32))


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(1, 2000))
def test_pieces_of_any_size_give_the_records_back(lengths: list[int], most: int) -> None:
    records = [a_reference(n) if n else None for n in lengths]
    before, parcels.MOST_BYTES = parcels.MOST_BYTES, most
    try:
        packed = RecordChunks.of(records)
    finally:
        parcels.MOST_BYTES = before
    for piece in packed.pieces:
        values = dataclasses.astuple(piece)
        size = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
        assert len(piece.token_ids) == 1 or size <= most
    again = join_chunks(packed.lengths, packed.pieces)
    assert all(same(a, b) for a, b in zip(again, records, strict=True))


def test_pieces_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(WorkerError, match="other positions than it announced"):
        join_chunks([3], [a_reference(2)])


class Model:
    """Keeps a reference of three positions for every request, and compares with one."""

    def score_reference(self, requests: Any, *, top_k: int, samples: int) -> Any:
        return [Response(loglikelihood=-1.0) for _ in requests], [
            a_reference(3, top_k=top_k) for _ in requests
        ]

    def score_against(self, requests: Any, references: Any) -> Any:
        found = tuple(divergence_from(kept, rows(3, 2)) for kept in references)
        return [Response(loglikelihood=-2.0) for _ in requests], ComparedAnswer(divergences=found)


def test_the_counter_takes_and_gives_one_piece_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "MOST_BYTES", 1)
    counter, model = DistributionCalls(), Model()
    request = Request(task="t", doc_id=0, index=0, kind="loglikelihood", arguments=("a", "b"))

    def ask(name: Any, argument: Any = None) -> Any:
        call = Call(number=1, name=name, argument=None)
        return counter.answer(call, argument, model)  # type: ignore[arg-type]

    told = ask("score_reference", ReferenceCall(requests=(request,) * 2, top_k=4, samples=2))
    assert isinstance(told, ChunkedAnswer)
    assert told.lengths == (3, 3)
    pieces = [ask("next_reference") for _ in range(6)]
    with pytest.raises(WorkerError, match="a piece that is not there"):
        ask("next_reference")
    references = join_chunks(told.lengths, pieces)
    assert all(same(found, a_reference(3)) for found in references)
    for piece in pieces:
        ask("give_reference", piece)
    wanted = ComparisonCall(requests=(request,) * 2, lengths=told.lengths)
    compared = ask("score_against", wanted)
    divergences = join_chunks(compared.lengths, [ask("next_divergence") for _ in range(6)])
    expected = divergence_from(a_reference(3), rows(3, 2))
    assert all(same(found, expected) for found in divergences)
    assert compared.responses[0].loglikelihood == -2.0
