"""Stored rows: what one side of a finished comparison was asked and answered, as it was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from evalguard.settings import Value
from evalguard.store import read_samples, sample_column_names


def stored_rows(file: Path, side: Literal["base", "candidate"]) -> tuple[Mapping[str, Value], ...]:
    """Return one side's rows of a task's samples, in ascending order of the documents' ids.

    The inverse of what ``record.sample_columns`` makes of them: a document that this side has not
    answered has no row.

    Raises:
        StoreError: the file is damaged.
    """
    own = f"{side}:"
    names = [name for name in sample_column_names(file) if name.startswith(own) or ":" not in name]
    columns = read_samples(file, names)
    answered = columns.get(f"{own}scores", ())
    return tuple(
        {name.removeprefix(own): values[place] for name, values in columns.items()}
        for place, scores in enumerate(answered)
        if scores is not None
    )
