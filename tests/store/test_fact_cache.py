"""Facts are found again whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.errors import StoreError
from evalguard.store.fact_cache import FactCache, FileDigests, open_facts

FACTS = {"description": {"model": "hf", "numbers": [1, 2.5, None]}, "name": "é"}


def only_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def test_facts_come_back_as_they_were(tmp_path: Path) -> None:
    facts = open_facts(tmp_path)
    assert facts.get("models", "abc") is None
    facts.put("models", "abc", FACTS)
    assert open_facts(tmp_path).get("models", "abc") == FACTS
    assert facts.get("models", "abd") is facts.get("encodings", "abc") is None
    facts.put("models", "abc", {"other": 1})
    assert facts.get("models", "abc") == {"other": 1}
    assert facts.problems == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-3],
        lambda data: data.replace(b'"hf"', b'"hg"'),
        lambda data: data.replace(b"2.5", b"2.4"),
        lambda data: b"",
        lambda data: b"[1, 2]",
        lambda data: b"\xff\xfe",
        lambda data: b'{"sha256": 3, "facts": {}}',
        lambda data: b"[" * 100_000,
    ],
)
def test_damaged_facts_are_none_and_are_said(tmp_path: Path, damage: object) -> None:
    facts = FactCache(tmp_path)
    facts.put("models", "abc", FACTS)
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert facts.get("models", "abc") is None
    assert facts.problems == [f"{path} is damaged: it is found out again"]
    facts.put("models", "abc", FACTS)
    assert facts.get("models", "abc") == FACTS


def test_a_file_in_anothers_place_is_no_fact_of_it(tmp_path: Path) -> None:
    facts = FactCache(tmp_path)
    facts.put("models", "abc", FACTS)
    path = only_file(tmp_path)
    path.rename(path.with_name("abd.json"))
    assert facts.get("models", "abd") is None


def test_a_disk_that_refuses_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "facts").write_text("a file where the folder should be")
    facts = open_facts(tmp_path)
    facts.put("models", "abc", FACTS)
    assert facts.get("models", "abc") is None


def test_only_digests_name_facts(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a digest"):
        FactCache(tmp_path).get("models", "../elsewhere")


def test_a_files_digest_counts_for_its_path_and_state_only(tmp_path: Path) -> None:
    digests = FileDigests(FactCache(tmp_path))
    digests.put("/models/a", (10, 20), "d1")
    assert digests.get("/models/a", (10, 20)) == "d1"
    assert digests.get("/models/a", (10, 21)) is None
    assert digests.get("/models/b", (10, 20)) is None
    digests.put("/models/a", (10, 21), "d2")
    assert digests.get("/models/a", (10, 20)) is None
    assert digests.get("/models/a", (10, 21)) == "d2"
