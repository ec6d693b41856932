"""Tasks that can hardly show a drift: the base is near chance, or a uniform guess does as well."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evalguard.core.amounts import finite_or_none
from evalguard.core.comparison import Comparison
from evalguard.core.document_columns import Rows, column_of
from evalguard.core.figures import is_figure
from evalguard.core.findings import Finding, FindingValue
from evalguard.core.settings import Value
from evalguard.page.rounding import format_count

# One-sided mid-p of McNemar's test with nothing won is 0.5^(b + 1): of fewer than five right
# answers a loss of all is no loss beyond chance at 2.5%.
_FEWEST_RIGHT = 5
# Above a guess by less than two standard errors of it, or by this share of what is above it.
_STANDARD_ERRORS, _LEAST_SKILL = 2.0, 0.02
# Perplexities, of a document's continuation, of words and of bytes, at which a model hardly knows a
# text; and of tokens, as a share of a uniform guess.
_LARGE_METRICS: Mapping[str, float] = {
    "perplexity": 1000.0, "word_perplexity": 1000.0, "byte_perplexity": 128.0, "bits_per_byte": 7.0,
}  # fmt: skip
_OF_UNIFORM = 0.5
_QUIET = ("unchanged", "undecided")
_MOST_NAMED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Insensitive:
    comparison: Comparison
    text: str
    short: str
    values: Mapping[str, FindingValue]


def find_insensitive_tasks(
    comparisons: Sequence[Comparison], rows: Mapping[str, Rows], *, vocabulary: int = 0
) -> tuple[Finding, ...]:
    """Say of which metrics that showed no drift the base leaves nothing to be lost, in one finding.

    Args:
        rows: the base's documents by task, as stored; a task without any is judged by its metrics.
        vocabulary: tokens that it chooses from; 0 where unknown.
    """
    insensitive = []
    for of in comparisons:
        # a group says what its tasks say; where a drift was seen, it can be seen
        if of.outcome in _QUIET and of.base is not None and not of.subtasks:
            judgement = _judge(of, of.base, rows.get(of.task, ()), vocabulary)
            insensitive += [] if judgement is None else [judgement]
    if not insensitive:
        return ()
    if len(insensitive) == 1:
        (only,) = insensitive
        task, filter_, metric = only.comparison.key
        return (
            Finding(
                kind="task_shows_little", text=only.text, task=task, filter=filter_, metric=metric,
                values=only.values,
            ),
        )  # fmt: skip
    named = [
        f"{judgement.comparison.task} {judgement.comparison.metric} ({judgement.short})"
        for judgement in insensitive
    ]
    shown, remaining = ", ".join(named[:_MOST_NAMED]), len(named) - _MOST_NAMED
    rest = f" and {remaining} more metric{'' if remaining == 1 else 's'}" if remaining > 0 else ""
    keys = tuple("/".join(judgement.comparison.key) for judgement in insensitive)
    return (
        Finding(
            kind="task_shows_little",
            text=f"a loss could hardly show: the base on {shown}{rest}",
            values={"metrics": keys},
        ),
    )


def _judge(of: Comparison, base: float, rows: Rows, vocabulary: int) -> _Insensitive | None:
    if of.metric in _LARGE_METRICS:
        return _judge_perplexity(of, base, rows, vocabulary)
    if not of.higher_is_better:
        return None
    if of.flips is None:
        if base != 0.0 or of.candidate != 0.0:
            return None
        text = "both models score 0 in all documents: nothing can be lost"
        return _Insensitive(comparison=of, text=text, short="0 everywhere", values={"base": 0.0})
    return _judge_answers(of, base, rows)


def _judge_answers(of: Comparison, base: float, rows: Rows) -> _Insensitive | None:
    """Of right and wrong answers."""
    chance, n, right = _chance(of.metric, rows), of.n_used, round(base * of.n_used)
    values: dict[str, FindingValue] = {"base": base, "chance": chance, "documents": n}
    if is_figure(of.filter, of.metric):  # that all are as they should be is no weakness
        return _judge_figure(of, right, values)
    share = f"{100 * base:.3g}%"
    if base == 1.0 and of.candidate == 1.0:
        text = f"both models answer all {format_count(n)} rightly: so easy a task shows little"
        return _Insensitive(comparison=of, text=text, short="100%", values=values)
    if chance > 0.0:
        error = math.sqrt(chance * (1.0 - chance) / n)
        if base >= chance + max(_STANDARD_ERRORS * error, _LEAST_SKILL * (1.0 - chance)):
            return None
        guess = f"{100 * chance:.3g}%"
        text = (
            f"the base answers {share} rightly where a guess gives {guess}: a loss could hardly "
            "show"
        )
        short = f"{share}, a guess {guess}"
        return _Insensitive(comparison=of, text=text, short=short, values=values)
    if right >= _FEWEST_RIGHT:
        return None
    number = "none" if right == 0 else f"only {right}"
    text = f"the base answers {number} of {format_count(n)} rightly: " + (
        "nothing can be lost" if right == 0 else "a loss of all could be chance"
    )
    return _Insensitive(
        comparison=of, text=text, short=f"{number} of {format_count(n)} right", values=values
    )


def _judge_figure(
    of: Comparison, right: int, values: Mapping[str, FindingValue]
) -> _Insensitive | None:
    """Of answers that are valid, or call a tool."""
    if right >= _FEWEST_RIGHT:
        return None
    number = f"{right or 'none'} of {format_count(of.n_used)}"
    text = f"of the base's answers {number} count for {of.metric}: a loss could hardly show"
    return _Insensitive(comparison=of, text=text, short=number, values=values)


def _chance(metric: str, rows: Rows) -> float:
    """Mean share that a guess gets right; 0 where a text is generated, or one answer is asked."""
    asked, scored = (column_of(rows, name) for name in ("arguments", "loglikelihood"))
    shares = [1.0 / number for number in map(_options, asked, scored) if number > 0]
    if metric == "acc_mutual_info" or not shares or max(shares) == 1.0:
        return 0.0
    return sum(shares) / len(shares)


def _options(asked: Value, scored: Value) -> int:
    """How many options a document is answered from; 1 where its text is generated or given."""
    if not isinstance(asked, Sequence) or not isinstance(scored, Sequence):
        return 0
    return (
        len({str(option) for option, of in zip(asked, scored, strict=False) if of is not None}) or 1
    )


def _judge_perplexity(
    of: Comparison, base: float, rows: Rows, vocabulary: int
) -> _Insensitive | None:
    tokens = list(_token_logprobs(rows))
    mean = -sum(tokens) / len(tokens) if tokens else 0.0
    beyond = bool(vocabulary) and mean >= math.log(_OF_UNIFORM * vocabulary)
    if not beyond and base < _LARGE_METRICS[of.metric]:
        return None
    values: dict[str, FindingValue] = {
        "base": finite_or_none(base),
        "nats_a_token": finite_or_none(mean) if tokens else None,
        "vocabulary": vocabulary or None,
    }
    short = f"{_number(base)}"
    if beyond:
        short += f", {mean:.3g} nats a token, a guess {math.log(vocabulary):.3g}"
    text = f"the base hardly knows these texts ({short}): a loss could hardly show"
    return _Insensitive(comparison=of, text=text, short=short, values=values)


def _token_logprobs(rows: Rows) -> Iterator[float]:
    for logprobs in column_of(rows, "token_logprobs"):
        for of in (
            logprobs if isinstance(logprobs, Sequence) and not isinstance(logprobs, str) else ()
        ):
            if isinstance(of, Sequence) and not isinstance(of, str):
                yield from (float(value) for value in of if isinstance(value, (int, float)))


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 or value >= 1e7 else format_count(round(value))
