"""Of a block of long texts that is never finished, the parts that are there are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_models import FakeScorer

from evalguard.core.scorer import Request, Response, Scorer
from evalguard.engine.answer import answer_unit, find_answer
from evalguard.engine.block_store import BlockStore, Unit
from evalguard.harness.request_blocks import RequestBlock, requests_digest

REQUESTS = tuple(
    Request(task="t", doc_id=at, index=0, kind="generate_until", arguments=(f"q{at}", {}))
    for at in range(7)
)
BLOCK = RequestBlock(
    index=0, requests=REQUESTS, digest=requests_digest(REQUESTS), doc_ids=tuple(range(7))
)
PARTS = [(6, 5), (4, 0), (1, 2, 3)]


class Writer(FakeScorer):
    """Writes texts, in parts that are not in the order of the requests."""

    def generation_parts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        return PARTS

    def _respond(self, request: Request) -> Response:
        return Response(text=f"{self.name} {request.arguments[0]}", ended="stop")


def store(folder: Path | None) -> BlockStore:
    def say(text: str) -> None:
        raise AssertionError(text)

    return BlockStore(folder=folder, note=say, find_unstored=say)


def answered(
    scorer: Scorer, folder: Path | None, seen: list[tuple[int, ...]] | None = None
) -> list[str | None]:
    def watch(_: Scorer, asked: Sequence[Request], told: Sequence[Response]) -> None:
        assert len(asked) == len(told)
        if seen is not None:
            seen.append(tuple(one.doc_id for one in asked))

    given = answer_unit(Unit(block=BLOCK), [scorer], store(folder), watch=watch)
    return [one.text for one in given.responses]


WHOLE = [f"m q{at}" for at in range(7)]


def test_an_interrupted_block_goes_on_where_it_was(tmp_path: Path) -> None:
    killed = Writer(fails={2: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        answered(killed, tmp_path)
    assert killed.scored == [(6, 5), (4, 0)]
    second = Writer()
    assert answered(second, tmp_path) == WHOLE
    assert second.scored == [(1, 2, 3)]


def test_parts_are_gone_once_their_block_is_kept(tmp_path: Path) -> None:
    assert answered(Writer(), tmp_path) == WHOLE
    assert [path.stem for path in tmp_path.rglob("*.parquet")] == [BLOCK.digest]
    found = find_answer(Unit(block=BLOCK), [Writer()], store(tmp_path))
    assert found is not None
    assert [one.text for one in found.responses] == WHOLE


def test_whoever_watches_sees_each_part_as_it_comes(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []
    answered(Writer(), tmp_path, seen)
    assert seen == [(6, 5), (4, 0), (1, 2, 3)]


def test_where_nothing_is_kept_texts_are_the_same() -> None:
    assert answered(Writer(), None) == WHOLE
