"""What a stored run's model answered, document by document, as one metric sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalguard.chosen_option import chosen_option, needs_lengths
from evalguard.lmeval_runs.choosing import Choosing
from evalguard.lmeval_runs.samples import Sample


def stored_answers(samples: Sequence[Sample], metric: str, choosing: Choosing) -> tuple[str, ...]:
    """What the documents were answered; () where any is unknown.

    The options stand in a run with the delimiter before them only, and where the metric depends on
    their lengths, the answers count only if they are right exactly where the run says so.
    """
    if choosing.output_type == "generate_until":
        return _texts(samples)
    if choosing.output_type != "multiple_choice" or choosing.own_rules:
        return ()
    answers = []
    for sample in samples:
        asked = len(sample.continuations) // (2 if choosing.doubled else 1)
        texts = sample.continuations[:asked]
        options = [text.removeprefix(choosing.delimiter) for text in texts]
        answer = _chosen(sample, metric, options)
        if answer is None or not _confirmed(sample, metric, options, answer):
            return ()
        answers.append(str(answer))
    return tuple(answers)


def _texts(samples: Sequence[Sample]) -> tuple[str, ...]:
    first = [sample.filtered[0] if sample.filtered else None for sample in samples]
    found = tuple(text for text in first if isinstance(text, str))
    return found if len(found) == len(samples) else ()


def _chosen(sample: Sample, metric: str, options: Sequence[str]) -> int | None:
    loglikelihoods = [_loglikelihood(response) for response in sample.filtered]
    known = [value for value in loglikelihoods if value is not None]
    if len(known) != len(sample.continuations) or len(known) != len(loglikelihoods):
        return None
    return chosen_option(metric, known, options)


def _loglikelihood(response: Any) -> float | None:
    """Of a (log-likelihood, is greedy) pair; lm-eval writes both as text or as values."""
    if not isinstance(response, (list, tuple)) or len(response) != 2:
        return None
    try:
        return float(response[0])
    except (TypeError, ValueError):
        return None


def _confirmed(sample: Sample, metric: str, options: Sequence[str], answer: int) -> bool:
    """Whether an answer that depends on lengths is right exactly where the run says so."""
    if not needs_lengths(metric):
        return True
    target = sample.target
    gold = options.index(target) if target in options else -1
    if gold < 0 and target.isdecimal():
        gold = int(target)
    return gold >= 0 and (answer == gold) == (sample.items[metric] == 1.0)
