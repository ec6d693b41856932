"""Which option of a multiple-choice document a model chose, as lm-eval's own metric chooses it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BY_LIKELIHOOD = frozenset({"acc", "f1", "mcc"})
_BY_LENGTH = frozenset({"acc_norm", "acc_bytes"})


def needs_lengths(metric: str) -> bool:
    """Whether the choice depends on how long the options are."""
    return metric in _BY_LENGTH


def chosen_option(
    metric: str, loglikelihoods: Sequence[float], options: Sequence[str]
) -> int | None:
    """Index of the chosen option; None where the metric chooses none, or by other rules.

    As ``ConfigurableTask.process_results`` of lm-eval 0.4.13: the largest log-likelihood for acc,
    f1 and mcc; per character for acc_norm, per byte for acc_bytes; less the unconditional one,
    which follows the others, for acc_mutual_info. Ties: the first.

    Args:
        loglikelihoods: of each option; for a task with acc_mutual_info, the unconditional ones
            after them.
        options: their texts.
    """
    values, n = list(loglikelihoods), len(options)
    if len(values) not in (n, 2 * n) or n == 0 or any(value != value for value in values):
        return None
    if metric in _BY_LIKELIHOOD:
        return _largest(values[:n])
    if metric in _BY_LENGTH:
        texts = options if metric == "acc_norm" else [option.encode() for option in options]
        lengths = [len(text) for text in texts]
        if not all(lengths):
            return None
        return _largest([value / of for value, of in zip(values[:n], lengths, strict=True)])
    if metric == "acc_mutual_info" and len(values) == 2 * n:
        # two infinities have no difference, which numpy takes for the largest, as lm-eval does
        pairs = np.asarray(values, dtype=np.float64).reshape(2, n)
        return int(np.argmax(pairs[0] - pairs[1]))
    return None


def _largest(values: Sequence[float]) -> int:
    return values.index(max(values))
