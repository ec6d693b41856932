"""Numbers that JSON cannot hold: null where they stand, and what they were in a key of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from evalguard.report.contract.record_reading import read_record

NON_FINITE = "non_finite"
NonFinite = Literal["nan", "+inf", "-inf"]
_SAID: dict[NonFinite, str] = {
    "nan": "is not a number",
    "+inf": "is +infinite",
    "-inf": "is -infinite",
}


def replace_non_finite(value: Any, name: str, lost: dict[str, NonFinite]) -> Any:
    """Replace what JSON cannot hold by null, and add to ``lost`` what that was, by its place."""
    if isinstance(value, float) and not math.isfinite(value):
        lost[name] = "nan" if math.isnan(value) else "+inf" if value > 0 else "-inf"
        return None
    if isinstance(value, Mapping):
        return {
            str(key): replace_non_finite(item, f"{name}.{key}", lost) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item, f"{name}[{i}]", lost) for i, item in enumerate(value)]
    return value


def null_texts(lost: Mapping[str, NonFinite], absent: Iterable[str] = ()) -> list[str]:
    """Return the caveats or notes for people: what was no number, and what does not exist."""
    said = [f"{name} does not exist" for name in absent]
    said += [f"{name} {_SAID[kind]}" for name, kind in lost.items()]
    return [f"{one}, so it is null here" for one in said]


def nulls_told(fields: Mapping[str, Any], texts: str, absent: Iterable[str] = ()) -> dict[str, Any]:
    """Return fields with null for what JSON cannot hold, told under ``non_finite`` and in texts.

    Args:
        texts: name of the field with the texts for people.
        absent: names of what is null because there is no such number, for the texts alone.
    """
    lost: dict[str, NonFinite] = {}
    values = {key: replace_non_finite(value, key, lost) for key, value in fields.items()}
    return {**values, texts: [*values[texts], *null_texts(lost, absent)], NON_FINITE: lost}


def restore_non_finite(
    fields: Mapping[str, Any],
    texts: str,
    lost: Mapping[str, NonFinite],
    where: str = "",
    *,
    absent: Iterable[str] = (),
) -> dict[str, Any]:
    """Return fields with the numbers that ``nulls_told`` replaced, and without its texts.

    Args:
        lost: what the numbers were, by their places in the document.
        where: the fields' own place in there.
    """
    found: dict[str, NonFinite] = {}

    def restore(value: Any, name: str) -> Any:
        if value is None and (kind := lost.get(where + name)):
            found[name] = kind
            return float(kind)
        if isinstance(value, Mapping):
            return {key: restore(item, f"{name}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [restore(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return value

    whole = {name: restore(value, name) for name, value in fields.items()}
    told = null_texts(found, [name for name in absent if whole.get(name) is None])
    others = list(whole[texts])
    while others and others[-1] in told:
        others.pop()
    return {**whole, texts: others}


def read_non_finite(value: Any) -> dict[str, NonFinite]:
    """Return what a document says under ``non_finite``."""
    found: dict[str, NonFinite] = read_record(dict[str, NonFinite], value, NON_FINITE)
    return found


# Documents of 0.1.0 have the texts alone: the one place where they are read.
_OF_0_1 = re.compile(
    rf"(?P<name>.*) (?P<said>{'|'.join(map(re.escape, _SAID.values()))}), so it is null here",
    re.DOTALL,
)


def non_finite_of_texts(texts: Iterable[str], where: str = "") -> dict[str, NonFinite]:
    """Return what the caveats or notes of a document without ``non_finite`` say."""
    kinds: dict[str, NonFinite] = {said: kind for kind, said in _SAID.items()}
    matches = map(_OF_0_1.fullmatch, texts)
    return {where + found["name"]: kinds[found["said"]] for found in matches if found}
