"""Rows that stand in another tensor of their module: queries, keys and values that were cut apart
in a wrong way, gates interleaved with what they gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalguard.core.tensor_structure import LARGEST_SEARCHED, Fault, Likeness
from evalguard.tensors.damaged_rows import PairRows, RowScan, fill_scan, find_sources, shape_rows
from evalguard.tensors.streamed_sums import StoredPair

_NEARLY_ALL = 0.9  # of the rows that differ
_NAME: Fault = "rows permuted"


def find_exchanged_rows(pairs: Sequence[StoredPair]) -> dict[str, Likeness]:
    """Return name -> what a tensor looks like whose rows are others' of its module.

    Args:
        pairs: that differ in no known way.
    """
    groups: dict[tuple[str, int], list[StoredPair]] = {}
    for pair in pairs:
        shape = shape_rows(pair.base.shape)
        if shape is not None:
            groups.setdefault((_module(pair.name), shape[1]), []).append(pair)
    likenesses: dict[str, Likeness] = {}
    for (module, columns), group in groups.items():
        if len(group) > 1 and sum(pair.elements for pair in group) <= LARGEST_SEARCHED:
            likenesses |= _find_in(group, columns, f"{module}." if module else "")
    return likenesses


def _find_in(group: Sequence[StoredPair], columns: int, prefix: str) -> dict[str, Likeness]:
    counts = [pair.elements // columns for pair in group]
    scan = RowScan.of(sum(counts), columns)
    ends = np.cumsum(counts)
    for pair, end, count in zip(group, ends, counts, strict=True):
        fill_scan(scan, PairRows(pair, count, columns), int(end) - count)
    beyond = np.flatnonzero(scan.beyond)
    known = beyond[scan.finite[beyond] & (scan.candidate_squares[beyond] > 0)]
    if not known.size:
        return {}
    source = find_sources(scan, known, beyond)
    owner, of = (np.searchsorted(ends, rows, side="right") for rows in (known, source))
    differing = np.bincount(np.searchsorted(ends, beyond, side="right"), minlength=len(group))
    likenesses = {}
    for at, pair in enumerate(group):
        moved = (owner == at) & (source >= 0)
        owners = np.unique(of[moved & (of != at)])
        if owners.size and moved.sum() >= _NEARLY_ALL * differing[at]:
            names = ", ".join(group[index].name.removeprefix(prefix) for index in owners)
            number = int((moved & (of != at)).sum())
            detail = f"{number:,} of {counts[at]:,} are rows of {names}"
            likenesses[pair.name] = Likeness(
                kind="structure", name=_NAME, fault=_NAME, detail=detail
            )
    return likenesses


def _module(name: str) -> str:
    """The module that holds the one whose tensor it is: "model.layers.0.self_attn"."""
    return name.rpartition(".")[0].rpartition(".")[0]
