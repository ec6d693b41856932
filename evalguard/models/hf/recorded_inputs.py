"""See which token ids any lm-eval model really feeds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalguard.models.hf.scored_tokens import InputTokens

RecordedPair = tuple[Any, Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Every (key, context ids, continuation ids) that a model was given, and its answers."""

    pairs: list[RecordedPair] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def record_input_tokens(lm: Any) -> Iterator[RecordedCalls]:
    """Record what ``lm._loglikelihood_tokens`` is given and answers.

    Models without that method (generate-only, some APIs) record nothing.
    """
    seen = RecordedCalls()
    original = getattr(lm, "_loglikelihood_tokens", None)
    if original is None:
        yield seen
        return

    def recording(requests: Sequence[RecordedPair], *arguments: Any, **options: Any) -> Any:
        seen.pairs.extend(requests)
        answers = original(requests, *arguments, **options)
        if isinstance(answers, list):
            seen.answers.extend(answers)
        return answers

    lm._loglikelihood_tokens = recording
    try:
        yield seen
    finally:
        del lm._loglikelihood_tokens


def match_inputs_to_requests(
    pairs: Sequence[RecordedPair], arguments: Sequence[tuple[Any, ...]], max_length: int | None
) -> list[InputTokens] | None:
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
    return [InputTokens.of_pair(context, cont, max_length) for _, context, cont in pairs]


def match_inputs_to_texts(
    pairs: Sequence[RecordedPair], scored_counts: Sequence[int], max_length: int | None
) -> list[list[InputTokens]] | None:
    """Split recorded rolling windows by text; None if they do not add up.

    ``scored_counts`` holds the number of tokens each text has: its windows score each token once.
    """
    if not _are_ids(pairs):
        return None
    remaining = iter(pairs)
    texts: list[list[InputTokens]] = []
    for count in scored_counts:
        windows: list[InputTokens] = []
        while sum(window.n_scored for window in windows) < count:
            pair = next(remaining, None)
            if pair is None:
                return None
            windows.append(InputTokens.of_pair(pair[1], pair[2], max_length))
        texts.append(windows)
    return texts if next(remaining, None) is None else None


def _are_ids(pairs: Sequence[RecordedPair]) -> bool:
    return all(isinstance(part, int) for _, ctx, cont in pairs for part in (*ctx[:1], *cont[:1]))
