"""What a recipe has written beside the model that it built, for the readers of its scores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evalguard.core.findings import Finding
from evalguard.errors import error_text

_MERGE_FACTS = "evalguard-merge.json"  # of the recipe for mergekit
_TOLD = 0.01  # of the deltas: float32 loses about a millionth


def list_built_findings(pretrained: object) -> Iterator[Finding]:
    """Say of a merge what rounding has eaten of it, and which of its parameters do nothing.

    Args:
        pretrained: the model's folder; anything else has no such facts.
    """
    file = Path(str(pretrained)) / _MERGE_FACTS
    if not os.path.exists(file):  # a hub id may be no path at all
        return
    try:
        yield from [*_list_merge_findings(json.loads(file.read_text(encoding="utf-8")))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        yield Finding(
            kind="deltas_lost",
            text=f"what rounding has eaten of the merge is not known: {file} is damaged, or of "
            f"another version ({error_text(error)}); build it once more",
            values={"file": str(file)},
        )


def _list_merge_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    method, dtype, deltas = str(facts["method"]), str(facts["dtype"]), facts["deltas"]
    counts = {name: count for name, count in deltas.items() if isinstance(count, int)}
    for name in facts["unused"]:
        yield Finding(
            kind="setting_unread",
            text=f"parameter '{name}' of the merge is inert: method {method} declares it and never "
            "reads it",
            values={"setting": str(name), "method": method},
        )
    trained, added = counts["trained"], counts["added"]
    lost = counts["lost_before"] + counts["lost_in_merge"]
    if lost > _TOLD * trained:
        worst = deltas["tensors"][0]
        share = worst["lost"] / worst["trained"]
        yield Finding(
            kind="deltas_lost",
            text=f"rounding has eaten {lost / trained:.1%} of the merge's deltas ({lost:,} of "
            f"{trained:,} trained elements): {counts['lost_before']:,} in the checkpoints, "
            f"{counts['lost_in_merge']:,} by dtype {dtype}; most in {worst['name']} ({share:.1%})",
            values={**counts, "dtype": dtype, "tensor": str(worst["name"])},
        )
    if counts["lost_in_sum"] > _TOLD * added:
        yield Finding(
            kind="deltas_lost",
            text=f"adding its deltas leaves {counts['lost_in_sum'] / added:.1%} of the merge's "
            f"elements as they were in the base ({counts['lost_in_sum']:,} of {added:,}): they are "
            f"too small for dtype {dtype}",
            values={**counts, "dtype": dtype},
        )
