"""Records of scored positions (Divergence, Reference), put together and cut apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

R = TypeVar("R")


def join_positions(parts: Sequence[R]) -> R:
    """Put records of consecutive positions together: arrays one after the other.

    Args:
        parts: frozen dataclasses of one class, whose arrays have the positions as first axis; what
            is not an array (a number of tokens, None) is the same in all of them.

    Raises:
        ValueError: for no parts, or parts that do not fit together.
    """
    if not parts:
        raise ValueError("no records to put together")
    if len(parts) == 1:
        return parts[0]
    first: Any = parts[0]
    fields = {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            fields[field.name] = np.concatenate(values)
        elif all(not isinstance(value, np.ndarray) and value == values[0] for value in values):
            fields[field.name] = values[0]
        else:
            raise ValueError(f"records differ in {field.name}: they do not fit together")
    return dataclasses.replace(first, **fields)  # type: ignore[no-any-return]


def cut(record: R, lengths: Sequence[int]) -> list[R]:
    """Cut a record into parts of so many positions each.

    Raises:
        ValueError: if the lengths do not add up to its positions.
    """
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    values = {field.name: getattr(record, field.name) for field in fields}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    positions = {array.shape[0] for array in arrays.values()}
    if positions != {sum(lengths)}:
        raise ValueError(f"{sorted(positions)} positions are not the {sum(lengths)} to be cut")
    kind = type(record)
    return [
        kind(**{**values, **{name: array[end - length : end] for name, array in arrays.items()}})
        for end, length in zip(accumulate(lengths), lengths, strict=True)
    ]
