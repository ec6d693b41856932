"""A document's checksum: any change of it shows, and another layout of the same is not a change."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evalguard.core.checksum import checksum, checksum_fault, with_checksum

DOCUMENT: dict[str, Any] = {
    "schema": "evalguard.compare/1",
    "base": {"name": "größe \ud800", "digest": "d"},
    "comparisons": [{"sigma": 1.0, "p": 1e-300, "n": 5153, "flips": [1, 2], "floor": None}],
    "passed": False,
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def test_it_is_the_sha256_of_the_canonical_text() -> None:
    text = '{"a":[1,0.5,null,true],"b":{"\\u00e9":"x"}}'
    document = {"b": {"é": "x"}, "a": [1.0, 0.5, None, True]}
    assert checksum(document) == hashlib.sha256(text.encode()).hexdigest()


def test_a_document_with_its_checksum_has_no_fault_and_one_without_neither() -> None:
    assert checksum_fault(with_checksum(DOCUMENT)) == checksum_fault(DOCUMENT) == ""
    assert list(with_checksum(with_checksum(DOCUMENT))) == [*DOCUMENT, "checksum"]


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_another_layout_order_or_spelling_of_numbers_is_no_change(document: Any) -> None:
    sealed = with_checksum(document)
    turned = dict(reversed(sealed.items()))
    assert checksum_fault(json.loads(json.dumps(turned, indent=3, ensure_ascii=True))) == ""
    as_floats = json.loads(json.dumps(sealed), parse_int=lambda digits: _float(digits))
    assert checksum_fault(as_floats) == ""


def _float(digits: str) -> float | int:
    """As a program writes it that knows only floats, where that loses nothing."""
    try:
        return float(digits) if int(float(digits)) == int(digits) else int(digits)
    except OverflowError:
        return int(digits)


@given(VALUES, VALUES)
def test_every_other_value_shows(one: Any, other: Any) -> None:
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    assume(one != other or isinstance(one, bool) != isinstance(other, bool))
    changed = {**with_checksum({"x": one}), "x": other}
    assert "that of what is there" in checksum_fault(changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["base"].update(name="größe"),
        lambda d: d["comparisons"][0].update(sigma=1.0000000000000002),
        lambda d: d["comparisons"][0].update(p=0.0),
        lambda d: d["comparisons"][0]["flips"].reverse(),
        lambda d: d["comparisons"].append({}),
        lambda d: d.update(passed=0),
        lambda d: d.update(of_nobody=None),
        lambda d: d.pop("base"),
    ],
)
def test_a_change_anywhere_shows(change: Any) -> None:
    changed = copy.deepcopy(with_checksum(DOCUMENT))
    change(changed)
    assert checksum_fault(changed)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "its checksum is none"),
        ("x", "its checksum is none"),
        ({}, "its checksum is none"),
        ({"algorithm": "sha256", "value": 7}, "its checksum is none"),
        ({"algorithm": "crc32", "value": "0"}, "made by 'crc32', and this evalguard knows sha256"),
        ({"algorithm": "sha256", "value": ""}, "that of what is there"),
    ],
)
def test_a_checksum_that_is_none_is_a_fault(told: Any, said: str) -> None:
    assert said in checksum_fault({**DOCUMENT, "checksum": told})


def test_what_the_page_of_the_contract_says_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "json.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "result.json").write_text(json.dumps(with_checksum(DOCUMENT)))
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # its assertion
    (tmp_path / "result.json").write_text(json.dumps({**with_checksum(DOCUMENT), "passed": True}))
    with pytest.raises(AssertionError):
        exec(code, {})
