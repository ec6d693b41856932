"""Whether a reference that was read from somewhere can be one at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import Float, log_sums
from evalguard.core.reference import Reference
from evalguard.core.top_tokens import NO_TOKEN

# Log-softmax in a narrow dtype may leave a probability a little above 1.
_MOST_LOGPROB = 0.1
_REFERENCE_ROUNDING = 1e-3


def check_reference(kept: Reference) -> Reference:
    """Return ``kept``, if every number in it is one that a model's distributions can have.

    What is consistent in itself cannot be told from the truth; what is not must give no number.

    Raises:
        ValueError: for shapes that do not fit, token ids outside the vocabulary, probabilities
            that are none, kept tokens that are not the most probable ones.
    """
    positions, size = kept.token_ids.shape[0], kept.vocabulary_size
    top, draws = kept.top_ids.shape, kept.sample_ids.shape
    flat = (kept.token_logprobs, kept.tail_mass, kept.full_support)
    if any(array.shape != (positions,) for array in flat):
        raise ValueError("a reference's arrays are of different lengths")
    if kept.top_logprobs.shape != top or kept.sample_logprobs.shape != draws:
        raise ValueError("a reference's token ids and log-probabilities do not fit")
    if top[0] != positions or draws[0] != positions or not 1 <= top[1] <= size or draws[1] < 1:
        raise ValueError(f"a reference of {size} tokens cannot keep {top[1]}, and {draws[1]} draws")
    known = ~np.isnan(kept.tail_mass)
    _check_ids(kept.token_ids, size)
    _check_ids(kept.top_ids[known], size)
    _check_ids(kept.sample_ids[kept.sample_ids != NO_TOKEN], size)
    if bool((kept.top_ids[~known] != NO_TOKEN).any()):
        raise ValueError("a row that is not a distribution has most probable tokens")
    ordered = np.sort(kept.top_ids[known], axis=1)
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ValueError("a token is kept twice")
    _check_probabilities(kept, known)
    return kept


def _check_ids(ids: NDArray[np.int64] | NDArray[np.int32], size: int) -> None:
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(f"a token id is outside the {size} tokens of the vocabulary")


def _check_probabilities(kept: Reference, known: NDArray[np.bool_]) -> None:
    logprobs = kept.top_logprobs[known].astype(np.float64)
    tail, drawn = kept.tail_mass[known], kept.sample_logprobs[known].astype(np.float64)
    said = (logprobs, kept.token_logprobs[known], drawn)
    # Written so that NaN is refused too.
    if any(not bool((values <= _MOST_LOGPROB).all()) for values in said):
        raise ValueError("a log-probability is above 0, or none at all")
    if not bool((logprobs[:, 1:] <= logprobs[:, :-1]).all()):
        raise ValueError("the kept tokens are not in descending order")
    cap = np.exp(logprobs[:, -1])
    most: Float = (kept.vocabulary_size - logprobs.shape[1]) * cap * (1.0 + _REFERENCE_ROUNDING)
    if not bool(((tail >= 0.0) & (tail <= most)).all()):
        raise ValueError("the tail has more probability than its tokens can have, or less than 0")
    if not bool((np.exp(drawn) <= (cap * (1.0 + _REFERENCE_ROUNDING))[:, None]).all()):
        raise ValueError("a drawn token is more probable than a kept one")
    log_sums(np.exp(logprobs).sum(axis=1) + tail, side="reference")
