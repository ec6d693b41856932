"""A reference file gives every block back to the last bit, or says that it is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_record_cache import a_reference, same
from test_score_cache import exact

from evalguard.errors import StoreError, UsageError
from evalguard.scorer import Response
from evalguard.store import ReferenceFile, ReferenceWriter

FACTS = {"base": "orig", "key": "00aa", "nested": {"a": [1, None, "é"]}}


def likelihood(reference: Any) -> Response:
    logprobs = np.empty(0) if reference is None else reference.token_logprobs
    return Response(
        loglikelihood=float(logprobs.sum()), is_greedy=False, token_logprobs=logprobs,
        token_hash="ab", n_tokens=7, truncated=True,
    )  # fmt: skip


BLOCKS: dict[tuple[str, str], tuple[list[Response], list[Any]]] = {}
for _name, _lengths in (("b0", [40, None, 3]), ("b1", [None]), ("b2", [1, 2])):
    _kept = [None if n is None else a_reference(n, n) for n in _lengths]
    BLOCKS["words", _name] = [likelihood(one) for one in _kept], _kept
BLOCKS["talk", "g0"] = [Response(text="é\ud800"), Response(text="")], [None, None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "orig.reference"
    with ReferenceWriter(path, FACTS) as writer:
        for (task, block), (responses, references) in BLOCKS.items():
            writer.add(task, block, responses, references)
    return path


def test_every_block_comes_back_to_the_last_bit(path: Path) -> None:
    file = ReferenceFile(path)
    assert file.facts == FACTS
    assert file.tasks == ("words", "talk")
    for (task, block), (responses, references) in BLOCKS.items():
        found = file.get(task, block)
        assert found is not None
        assert [exact(r) for r in found[0]] == [exact(r) for r in responses]
        assert all(same(a, b) for a, b in zip(found[1], references, strict=True))
    assert file.get("words", "b7") is None
    file.close()


def test_it_is_an_ordinary_parquet_file(path: Path) -> None:
    import pandas as pd

    table = pd.read_parquet(path)
    assert table.task.tolist() == ["words"] * 6 + ["talk"] * 2
    assert len(table.token_ids[0]) == len(table.scores[0]) == 40
    assert len(table.top_ids[0]) == 160


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "half.reference"
    responses, references = BLOCKS["words", "b0"]

    def interrupted() -> None:
        with ReferenceWriter(path, FACTS) as writer:
            writer.add("words", "b0", responses, references)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with ReferenceWriter(path, FACTS):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error_of_the_store(tmp_path: Path) -> None:
    responses, references = BLOCKS["words", "b0"]
    with (
        pytest.raises(StoreError, match="cannot write the reference"),
        ReferenceWriter(tmp_path / "no" / "such", FACTS) as writer,
    ):
        writer.add("words", "b0", responses, references)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("cut", "is no whole reference: it cannot be read as parquet"),
        ("text", "is no whole reference"),
        ("empty", "is no whole reference"),
        ("folder", "is no whole reference"),
        ("other parquet", "is no evalguard.reference/1 but another parquet file"),
        ("absent", "there is no reference"),
    ],
)
def test_what_is_no_reference_is_refused(path: Path, damage: str, message: str) -> None:
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "text":
        path.write_text("not a reference at all " * 20)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other parquet":
        import pandas as pd

        pd.DataFrame({"a": [1]}).to_parquet(path)
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    with pytest.raises(UsageError, match=message) as raised:
        ReferenceFile(path)
    assert damage == "absent" or "made anew" in raised.value.hint


def test_a_changed_byte_is_found(path: Path) -> None:
    data = bytearray(path.read_bytes())
    found = 0
    for at in range(60, len(data) - 4000, 97):
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            for (task, block), (responses, references) in BLOCKS.items():
                got = ReferenceFile(path).get(task, block)
                assert got is not None
                assert [exact(r) for r in got[0]] == [exact(r) for r in responses]
                assert all(same(a, b) for a, b in zip(got[1], references, strict=True))
        except UsageError:
            found += 1
    assert found > 0
