"""In what of a model nothing was trained: buffers that it computes anew, rows without a change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Some versions of a library store these, and others do not. How names end; transformers leaves the
# same out (``_keys_to_ignore_on_load_unexpected``).
_NAMES = (
    ".position_ids", ".rotary_emb.inv_freq", ".masked_bias", ".relative_position_index",
    ".token_type_ids",
)  # fmt: skip
_MASKS = (".attn.bias", ".attention.bias")  # of GPT-2 and GPT-NeoX, where they are square


def is_untrained_buffer(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is such a buffer, by its name and shape."""
    mask = len(shape) == 4 and shape[0] == shape[1] == 1 and shape[2] == shape[3]
    return f".{name}".endswith(_NAMES) or (mask and f".{name}".endswith(_MASKS))


def count_untrained(unchanged: NDArray[np.int64], columns: int) -> int:
    """Return how many elements lie in rows that were never trained, as of tokens that no text had.

    Rounding leaves single elements as they were; where it leaves a share q of them, it leaves
    whole rows with the chance q ** columns. Rows are untrained where there are far more of them.

    Args:
        unchanged: elements of each row that are as they were; one row of a vector.
        columns: elements of a row.

    >>> count_untrained(np.array([64, 64, 3, 5]), 64), count_untrained(np.array([2, 1, 2, 2]), 2)
    (128, 0)
    """
    whole = int(np.count_nonzero(unchanged == columns))
    trained = unchanged[unchanged < columns]
    share = float(trained.mean()) / columns if trained.size else 0.0
    by_chance = unchanged.size * share**columns
    return 0 if by_chance > _RARE * whole else whole * columns


_RARE = 0.01
