"""Log-likelihoods that are minus infinity, however a server or a run spells them.

JSON has no infinity, so that servers write a number in its place, for each token:

| who                                    | a probability of 0 is              |
|----------------------------------------|------------------------------------|
| vLLM, and OpenAI's API, which says so  | -9999.0                            |
| SGLang                                 | the lowest number of the dtype:    |
|                                        | -65504 (half), -3.39e38, -3.40e38  |
| llama.cpp's server                     | the lowest float32, -3.40e38       |
| lm-eval, transformers, TensorRT-LLM    | -inf                               |

A log-softmax over a vocabulary is above -9999 for any model whose logits are of use, so that
everything from there on down is minus infinity. A finished run shows the sum over a text's tokens
alone: -9999 and the others'. mlx-omni-server cuts at -100, which a token can have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NO_PROBABILITY = -9999.0
"""The highest number that a server writes for the logarithm of a probability of 0."""

# Below this no mean over the tokens of a text is a model's: in a sum it shows a token of -9999.
_LEAST_MEAN = -100.0
# The lowest bfloat16, which is higher than the lowest float32.
_LOWEST = -3.38e38
# Of English text in a large vocabulary; other texts and vocabularies have fewer.
_BYTES_PER_TOKEN = 4


def restore_infinity(
    loglikelihood: float,
    *,
    token_logprobs: Sequence[float] | NDArray[np.float64] | None = None,
    text: str | None = None,
) -> float:
    """Return a log-likelihood, as minus infinity where a token of it has no probability.

    Args:
        loglikelihood: of a text, in nats; NaN stays what it is.
        token_logprobs: of its tokens, where they are known.
        text: that was scored, where they are not; None: not known either. Then only the numbers
            themselves that servers write are known for what they are.
    """
    if not loglikelihood <= NO_PROBABILITY:  # most of them, and NaN
        return loglikelihood
    if token_logprobs is not None and len(token_logprobs):
        without = float(np.min(token_logprobs)) <= NO_PROBABILITY
    elif text is not None:
        without = loglikelihood <= _LEAST_MEAN * estimate_tokens(text)
    else:
        without = loglikelihood == NO_PROBABILITY or loglikelihood <= _LOWEST
    return -math.inf if without else loglikelihood


def restore_infinities(
    loglikelihoods: NDArray[np.float64], texts: Sequence[str | None]
) -> NDArray[np.float64]:
    """Return texts' log-likelihoods, shape (n,), each as of ``restore_infinity``."""
    low = np.flatnonzero(loglikelihoods <= NO_PROBABILITY).tolist()
    if not low:
        return loglikelihoods
    found = loglikelihoods.copy()
    for place in low:
        found[place] = restore_infinity(float(found[place]), text=texts[place])
    return found


def restore_token_infinities(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tokens' log-probabilities, shape (n,), with minus infinity where it was spelled."""
    return np.where(logprobs <= NO_PROBABILITY, -np.inf, logprobs)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, at least 1; rather too few than too many."""
    return max(1, -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN))
