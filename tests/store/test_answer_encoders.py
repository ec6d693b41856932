"""An answer comes back whole from everything that keeps or sends it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_score_cache import exact

from evalguard.core.scorer import Response
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.distributions.reference_file import ReferenceFile, ReferenceWriter
from evalguard.store.answer_journal import AnswerFile
from evalguard.store.answer_table import block_from_bytes, block_to_bytes
from evalguard.store.sealed_files import decode_line, encode_line, seal
from evalguard.worker.messages import RESPONSES

# Every field has another value than its default; numbers are those of a model in float32.
WHOLE = Response(
    loglikelihood=-1.5,
    is_greedy=True,
    text="é\ud800",
    token_logprobs=np.array([-0.25, -1.25]),
    top_logprobs=({"a": -0.25, "é": -float("inf")}, {}),
    token_hash="00ab",
    n_tokens=7,
    truncated=True,
    ended="length",
    generated=GeneratedTokens.of([3, 9], [0.5, -0.125], [9, -1]),
    message='{"finish_reason": "tool_calls"}',
)
PLAIN = Response(loglikelihood=-0.0, token_logprobs=np.empty(0), token_hash="ff")
ANSWERS = (WHOLE, PLAIN, dataclasses.replace(WHOLE, ended="stop", top_logprobs=()))


def test_the_example_says_something_in_every_field() -> None:
    left_out = Response()
    for field in dataclasses.fields(Response):
        assert getattr(WHOLE, field.name) is not getattr(left_out, field.name), field.name


def through_a_block(folder: Path) -> list[Response]:
    return block_from_bytes(bytes(block_to_bytes("key", "block", ANSWERS)), "key", "block")


def through_a_reference(folder: Path) -> list[Response]:
    with ReferenceWriter(folder / "base.reference", {}) as writer:
        writer.add("words", "block", ANSWERS, [None] * len(ANSWERS))
    file = ReferenceFile(folder / "base.reference")
    found = file.get("words", "block")
    file.close()
    assert found is not None
    return found[0]


def through_a_journal(folder: Path) -> list[Response]:
    book = AnswerFile(folder / "answers.jsonl", facts={}, revision="one")
    for number, answer in enumerate(ANSWERS):
        book.add(str(number), answer)
    book.close()
    again = AnswerFile(folder / "answers.jsonl", facts={}, revision="one")
    found = [again.find(str(number)) for number in range(len(ANSWERS))]
    again.close()
    assert again.problems == []
    return [one for one in found if one is not None]


def through_a_worker(folder: Path) -> list[Response]:
    return list(RESPONSES.decode(RESPONSES.encode(ANSWERS)))


@pytest.mark.parametrize(
    "through", [through_a_block, through_a_reference, through_a_journal, through_a_worker]
)
def test_every_field_comes_back_to_the_last_bit(
    tmp_path: Path, through: Callable[[Path], list[Response]]
) -> None:
    assert [exact(one) for one in through(tmp_path)] == [exact(one) for one in ANSWERS]


def test_a_block_of_answers_that_say_less_is_as_it_always_was() -> None:
    data = bytes(block_to_bytes("key", "block", [PLAIN]))
    names = pq.read_schema(io.BytesIO(data)).names
    assert {"top_logprobs", "ended", "message"}.isdisjoint(names)
    assert not [name for name in names if name.startswith("generated")]


LATER = ("generated", "message")  # fields that answers did not have once


def test_answers_of_a_journal_from_before_tokens_were_kept_are_read(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    book = AnswerFile(path, facts={}, revision="one")
    book.add("0", PLAIN)
    book.close()
    lines = [decode_line(line) for line in path.read_bytes().splitlines()]
    answers = [line.get("answer") for line in lines if line is not None]
    for told in (one for one in answers if one is not None):
        for name in LATER:
            del told[name]
    path.write_bytes(b"".join(encode_line(line) for line in lines if line is not None))
    again = AnswerFile(path, facts={}, revision="one")
    found = again.find("0")
    again.close()
    assert again.problems == []
    assert found is not None
    assert exact(found) == exact(PLAIN)


def test_a_reference_from_before_endings_and_tokens_were_kept_is_read(tmp_path: Path) -> None:
    path = tmp_path / "base.reference"
    with ReferenceWriter(path, {"base": "orig"}) as writer:
        writer.add("words", "block", ANSWERS, [None] * len(ANSWERS))
    then = pq.read_table(path).drop_columns(
        ["shown_logprobs", "ended", "message"]
        + [f"generated_{name}" for name in ("ids", "margins", "others")]
    )
    pq.write_table(then, path)
    with path.open("r+b") as file:
        seal(file)
    file = ReferenceFile(path)
    found = file.get("words", "block")
    assert found is not None
    nothing = {"ended": "", "top_logprobs": None, "generated": None, "message": ""}
    expected = [dataclasses.replace(one, **nothing) for one in ANSWERS]  # type: ignore[arg-type]
    assert [exact(one) for one in found[0]] == [exact(one) for one in expected]
