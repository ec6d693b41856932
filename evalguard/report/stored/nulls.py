"""Numbers that JSON cannot hold, put back from the caveats that say what each null was.

The inverse of ``evalguard.report.contract.plain``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_LOST = re.compile(
    r"(?P<name>.*) (?P<what>is not a number|is \+infinite|is -infinite|does not exist)"
    r", so it is null here",
    re.DOTALL,
)
_WAS: dict[str, float | None] = {
    "is not a number": math.nan,
    "is +infinite": math.inf,
    "is -infinite": -math.inf,
    "does not exist": None,
}


def restored(
    values: Mapping[str, Any], texts: Iterable[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return ``values`` with the numbers that ``texts`` tell of, and the other texts.

    Args:
        values: plain JSON values, by the names that the texts use.
        texts: caveats or notes; those about nulls stand last, as they were written.
    """
    texts = list(texts)
    kept = len(texts)
    while kept and _LOST.fullmatch(texts[kept - 1]):
        kept -= 1
    told: dict[str, list[str]] = {}
    for text in texts[kept:]:
        found = _LOST.fullmatch(text)
        assert found is not None
        told.setdefault(found["name"], []).append(text)
    whole = {name: _with_numbers(value, name, told) for name, value in values.items()}
    unused = {text for some in told.values() for text in some}
    return whole, (*texts[:kept], *(text for text in texts[kept:] if text in unused))


def _with_numbers(value: Any, name: str, told: dict[str, list[str]]) -> Any:
    if value is None and told.get(name):
        found = _LOST.fullmatch(told[name].pop(0))
        return None if found is None else _WAS[found["what"]]
    if isinstance(value, Mapping):
        return {key: _with_numbers(item, f"{name}.{key}", told) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item, f"{name}[{i}]", told) for i, item in enumerate(value)]
    return value
