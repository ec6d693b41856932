"""See which token ids any lm-eval model really feeds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from evalguard.models.scored_tokens import FedTokens

Pair = tuple[Any, Sequence[int], Sequence[int]]


@contextlib.contextmanager
def recorded(lm: Any) -> Iterator[list[Pair]]:
    """Record every (key, context ids, continuation ids) given to ``lm._loglikelihood_tokens``.

    Models without that method (generate-only, some APIs) record nothing.
    """
    seen: list[Pair] = []
    original = getattr(lm, "_loglikelihood_tokens", None)
    if original is None:
        yield seen
        return

    def recording(requests: Sequence[Pair], *arguments: Any, **options: Any) -> Any:
        seen.extend(requests)
        return original(requests, *arguments, **options)

    lm._loglikelihood_tokens = recording
    try:
        yield seen
    finally:
        del lm._loglikelihood_tokens


def fed_per_request(
    pairs: Sequence[Pair], arguments: Sequence[tuple[Any, ...]], max_length: int | None
) -> list[FedTokens] | None:
    """Match recorded pairs to likelihood requests, in the order asked; None if they do not match.

    Args:
        pairs: what was recorded while the requests were answered.
        arguments: (context, continuation) of each request.
        max_length: the model's context length, None where unknown.
    """
    if len(pairs) != len(arguments) or not _are_ids(pairs):
        return None
    for (key, _, _), asked in zip(pairs, arguments, strict=True):
        if key is not None and tuple(key) != tuple(asked):
            return None
    return [FedTokens.of_pair(context, cont, max_length) for _, context, cont in pairs]


def fed_per_text(
    pairs: Sequence[Pair], scored_counts: Sequence[int], max_length: int | None
) -> list[list[FedTokens]] | None:
    """Split recorded rolling windows by text; None if they do not add up.

    ``scored_counts`` holds the number of tokens each text has: its windows score each token once.
    """
    if not _are_ids(pairs):
        return None
    remaining = iter(pairs)
    texts: list[list[FedTokens]] = []
    for count in scored_counts:
        windows: list[FedTokens] = []
        while sum(window.n_scored for window in windows) < count:
            pair = next(remaining, None)
            if pair is None:
                return None
            windows.append(FedTokens.of_pair(pair[1], pair[2], max_length))
        texts.append(windows)
    return texts if next(remaining, None) is None else None


def _are_ids(pairs: Sequence[Pair]) -> bool:
    return all(isinstance(part, int) for _, ctx, cont in pairs for part in (*ctx[:1], *cont[:1]))
