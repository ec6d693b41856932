"""result.json is read as strict JSON, and only as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalguard.core.checksum import with_checksum
from evalguard.errors import StoreError, UsageError
from evalguard.store.run_folder import read_result

SCHEMA = "evalguard.compare/1"
WRITTEN = with_checksum({"schema": SCHEMA, "notes": ["as it was"], "sigma": 1.5})


def result(folder: Path, content: bytes | str | dict[str, Any]) -> Path:
    text = json.dumps(content) if isinstance(content, dict) else content
    (folder / "result.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def test_what_was_written_is_read_whatever_its_layout(tmp_path: Path) -> None:
    assert read_result(result(tmp_path, WRITTEN), schema=SCHEMA) == WRITTEN
    turned = dict(reversed(WRITTEN.items()))
    text = json.dumps(turned, indent=8).replace("1.5", "15e-1")
    assert read_result(result(tmp_path, text), schema=SCHEMA) == WRITTEN


def test_one_of_an_earlier_version_has_no_checksum_and_is_read(tmp_path: Path) -> None:
    older = {"schema": SCHEMA, "notes": []}
    assert read_result(result(tmp_path, older), schema=SCHEMA) == older


@pytest.mark.parametrize("change", [{"notes": ["as it is"]}, {"sigma": 1.25}, {"more": 1}])
def test_a_change_is_refused_with_the_file_and_what_to_do(tmp_path: Path, change: Any) -> None:
    with pytest.raises(StoreError, match="is not as evalguard wrote it") as refused:
        read_result(result(tmp_path, {**WRITTEN, **change}), schema=SCHEMA)
    assert str(tmp_path / "result.json") in str(refused.value)
    assert "compare again" in refused.value.hint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        (json.dumps(WRITTEN)[:-9], "is not JSON"),
        ('{"schema": "evalguard.compare/1", "x": NaN}', "NaN is not a number in JSON"),
        ('{"schema": "evalguard.compare/1", "x": -Infinity}', "-Infinity is not a number"),
        ('{"schema": "evalguard.compare/1", "schema": "evalguard.compare/1"}', "'schema' is there"),
        ('{"schema": "evalguard.compare/1", "a": [{"b": 1, "b": 2}]}', "key 'b' is there twice"),
        ('{"schema": "evalguard.compare/1", "x": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"schema": "evalguard.compare/1", "x": ' + "[" * 10**5 + "]" * 10**5 + "}", "too deeply"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"\x00" * 10, "is not JSON"),
        ("[]", "not an evalguard.compare/1 document"),
        ("7", "not an evalguard.compare/1 document"),
    ],
)  # fmt: skip
def test_what_is_no_strict_json_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_result(result(tmp_path, content), schema=SCHEMA)


def test_a_checksum_does_not_hide_another_contract(tmp_path: Path) -> None:
    other = with_checksum({"schema": "evalguard.compare/2"})
    with pytest.raises(UsageError, match=r"evalguard\.compare/2"):
        read_result(result(tmp_path, other), schema=SCHEMA)


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalguard.store.run_folder.MOST_BYTES", 40)
    with pytest.raises(UsageError, match="is larger than"):
        read_result(result(tmp_path, WRITTEN), schema=SCHEMA)
