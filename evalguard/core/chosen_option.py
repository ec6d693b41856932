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
    values, n = np.asarray(loglikelihoods, dtype=np.float64), len(options)
    if values.shape[0] not in (n, 2 * n) or n == 0 or np.isnan(values).any():
        return None
    if metric in _BY_LIKELIHOOD:
        return int(np.argmax(values[:n]))
    if metric in _BY_LENGTH:
        texts = options if metric == "acc_norm" else [option.encode() for option in options]
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        return int(np.argmax(values[:n] / lengths)) if lengths.all() else None
    if metric == "acc_mutual_info" and values.shape[0] == 2 * n:
        return int(np.argmax(values[:n] - values[n:]))
    return None
