"""A reference file gives every block back to the last bit, or says that it is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_examples import a_reference, same
from test_score_cache import exact

from evalguard.core.scorer import Response
from evalguard.distributions.reference_file import ReferenceFile, ReferenceWriter
from evalguard.errors import StoreError, UsageError
from evalguard.store.sealed_files import UNSEALED, seal

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


def test_blocks_that_come_late_stand_where_they_belong(path: Path, tmp_path: Path) -> None:
    late = tmp_path / "late"
    with ReferenceWriter(late, FACTS) as writer:
        for place, ((task, block), kept) in [(n, of) for n, of in enumerate(BLOCKS.items())][::-1]:
            writer.add(task, block, *kept, place=(0, place))
    assert late.read_bytes() == path.read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted([late, path])


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
        ("cut", "is not a whole reference: it was not made by evalguard, or was changed since"),
        ("text", "is not a whole reference"),
        ("empty", "is not a whole reference"),
        ("folder", "cannot be read"),
        ("other parquet", "is not a whole reference"),
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


@pytest.mark.parametrize("bit", [1, 64])
def test_a_changed_bit_is_found_wherever_it_is(path: Path, bit: int) -> None:
    data = path.read_bytes()
    for at in range(0, len(data), 61):
        changed = bytearray(data)
        changed[at] ^= bit
        path.write_bytes(changed)
        with pytest.raises(UsageError, match="is not a whole reference"):
            ReferenceFile(path)


def test_one_of_another_layout_is_refused(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("evalguard.reference/2", "evalguard.reference/1"):
        about = {"format": name, "facts": "{}", "seal": UNSEALED}
        table = pa.table({"task": ["t"]}).replace_schema_metadata(about)
        pq.write_table(table, path)
        with path.open("r+b") as file:
            seal(file)
        with pytest.raises(
            UsageError, match=f"is not an evalguard.reference/1 .*{name[-1]}|version"
        ):
            ReferenceFile(path)


@pytest.mark.parametrize("facts", ["[1]", "[" * 100_000, "{", "1e999"])
def test_facts_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str
) -> None:
    path = tmp_path / "crafted.reference"
    monkeypatch.setattr("evalguard.distributions.reference_file.json.dumps", lambda _: facts)
    with ReferenceWriter(path, {}) as writer:
        writer.add("words", "b0", *BLOCKS["words", "b0"])
    monkeypatch.undo()
    with pytest.raises(UsageError, match="says nothing of its base"):
        ReferenceFile(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": -1},
        {"top_ids": 10**6},
        {"top_ids": 0},
        {"top_logprobs": np.nan},
        {"top_logprobs": 3.0},
        {"tail_mass": -0.5},
        {"tail_mass": np.inf},
        {"sample_ids": 2**30},
        {"sample_logprobs": np.nan},
        {"sample_logprobs": 0.0},
        {"vocabulary_size": 0},
        {"vocabulary_size": 1},
        {"vocabulary_size": -5},
    ],
)
def test_a_crafted_file_whose_seal_is_in_order_gives_no_number(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "crafted.reference"
    kept = a_reference(5, 5)
    wrong = {
        name: np.full_like(getattr(kept, name), value) if name != "vocabulary_size" else value
        for name, value in changes.items()
    }
    with ReferenceWriter(path, FACTS) as writer:
        writer.add("words", "b0", [likelihood(kept)], [dataclasses.replace(kept, **wrong)])
    with pytest.raises(UsageError, match="damaged: its block 1 of 1: it holds what no model"):
        ReferenceFile(path).get("words", "b0")


def test_a_block_that_says_it_is_huge_is_refused_unread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.store.answer_table.MOST_VALUES", 3)
    with pytest.raises(UsageError, match="larger than a block can be"):
        ReferenceFile(path)
