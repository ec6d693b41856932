"""Hyper-parameters in words, and which of them may explain a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args

from evalguard.core.hyperparameters import HyperparameterDelta, HyperparameterVerdict
from evalguard.core.settings import Value
from evalguard.page.phrases import list_names
from evalguard.page.rounding import format_count
from evalguard.page.safe_text import printable

_MOST_TOLD, _MOST_NAMED = 2, 8
_MOST_ENTRIES = 6  # of a list, before the rest is only counted


def hyperparameter_text(value: Value) -> str:
    """Return a value with as many digits as tell it from its float32 neighbours."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        shown = ", ".join(map(hyperparameter_text, value[:_MOST_ENTRIES]))
        suffix = f", ... {len(value)} values" if len(value) > _MOST_ENTRIES else ""
        return f"[{shown}{suffix}]"
    return printable(value if isinstance(value, str) else json.dumps(value))


def configuration_text(found: Sequence[HyperparameterDelta], *, longest: int = 0) -> str:
    """Say how the hyper-parameters of both sides compare, those that differ by name.

    Args:
        longest: tokens of the longest text; 0 where there is none.
    """
    if not found:
        return ""
    counts = {
        verdict: [delta for delta in found if delta.verdict == verdict]
        for verdict in get_args(HyperparameterVerdict)
    }
    differing = counts["differs"]
    shown = "; ".join(map(difference_text, differing))
    if len(differing) > _MOST_TOLD:
        names = list(dict.fromkeys(delta.name for delta in differing))
        shown = f"{len(names)} differ: {list_names(names, most=_MOST_NAMED)}"
    if any(_is_unreached(delta, longest) for delta in differing):
        shown += f"; no text reaches the window (the longest has {format_count(longest)} tokens)"
    head = f"Configuration: {shown}" if differing else "Configuration: nothing differs"
    tail = []
    for dtype in ("float32", "float16", "bfloat16"):
        rounded = list_names([delta.name for delta in counts[f"equal as {dtype}"]], most=3)
        if rounded:
            tail.append(f"equal once in {dtype}: {rounded}")
    declared = len(counts["declared alike"])
    if declared:
        tail.append(f"{declared} declared alike, which a library does not show in full")
    alone = len(counts["one side only"])
    if alone:
        tail.append(f"{alone} shown by one side only")
    tail.append(f"{len(counts['equal'])} equal")
    return f"{head} ({', '.join(tail)})"


def _is_unreached(one: HyperparameterDelta, longest: int) -> bool:
    """Whether it is a window that no text is longer than, so that it can have changed nothing."""
    if one.name != "attention_window":
        return False
    windows = [
        width
        for side in (one.base, one.candidate)
        for width in (side if isinstance(side, list) else [side])
        if isinstance(width, int)
    ]
    return bool(windows) and 0 < longest <= min(windows)


def difference_text(one: HyperparameterDelta) -> str:
    """Return "norm_eps 1e-06 in the base, 1e-05 in the candidate (model.norm)"."""
    where = f" ({printable(one.where)})" if one.where else ""
    if one.name == "tied_embeddings" and isinstance(one.base, bool):
        same, own = ("base", "candidate") if one.base else ("candidate", "base")
        return (
            f"the output layer has the embedding's weights in the {same} (tied), and others in the "
            f"{own}: {_TIES[one.base]}"
        )
    if isinstance(one.base, list) and isinstance(one.candidate, list):
        return f"{printable(one.name)} {_lists_text(one.base, one.candidate)}{where}"
    base, candidate = side_texts(one)
    return f"{printable(one.name)} {base} in the base, {candidate} in the candidate{where}"


_TIES = {
    True: "an output layer that is not tied, or is an earlier embedding's",
    False: "tied where it must not be",
}


def _lists_text(base: list[Value], candidate: list[Value]) -> str:
    """Two lists by their lengths, or short ones whole, or from where on they differ."""
    if len(base) != len(candidate):
        return f"has {len(base)} values in the base, {len(candidate)} in the candidate"
    if len(base) <= _MOST_ENTRIES:
        texts = hyperparameter_text(base), hyperparameter_text(candidate)
        return f"{texts[0]} in the base, {texts[1]} in the candidate"
    at = next((n for n, pair in enumerate(zip(base, candidate, strict=True)) if pair[0] != pair[1]))
    texts = hyperparameter_text(base[at]), hyperparameter_text(candidate[at])
    return (
        f"{texts[0]} in the base, {texts[1]} in the candidate, from number {at + 1} of "
        f"{len(base)} on"
    )


def side_texts(one: HyperparameterDelta) -> tuple[str, str]:
    """Both values; "-" for a side that does not show it."""
    alone = one.verdict == "one side only"
    return (
        "-" if alone and not one.base_source else hyperparameter_text(one.base),
        "-" if alone and not one.candidate_source else hyperparameter_text(one.candidate),
    )
