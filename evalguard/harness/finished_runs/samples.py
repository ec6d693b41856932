"""Samples: the lines of one samples file, by filter, in ascending doc_id."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

from evalguard.core.chosen_option import chosen_option, needs_lengths
from evalguard.core.documents.likelihoods import restore_infinity
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.core.score_items import request_hash
from evalguard.core.scorer import Ending
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.finished_runs.files import read_lines
from evalguard.harness.finished_runs.results import Choosing

_HASHES = ("doc_hash", "prompt_hash", "target_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One document under one filter: lm-eval's hashes, and one item per metric.

    ``sound`` is False where the model gave no number for a continuation: an accuracy hides that.
    ``answers`` counts the different answers to one request, where it was made repeatedly.
    ``asked`` is the hash of all texts that were asked, "" where the run does not show them;
    ``doc`` is the document itself, None where the run does not show it. ``target`` is lm-eval's
    text of it, ``prompt`` the first context. One per request, () where the run does not show them:
    ``requests``, their arguments, a context that is the prompt as None; ``responses``, lists of
    repeated ones, and ``filtered``, those after the filter.
    """

    doc_id: int
    doc_hash: str
    prompt_hash: str
    target_hash: str
    items: Mapping[str, Any]
    sound: bool = True
    answers: int = 1
    asked: str = ""
    doc: object = field(default=None, repr=False)
    target: str = ""
    prompt: str | None = field(default=None, repr=False)
    requests: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    responses: tuple[Any, ...] = field(default=(), repr=False)
    filtered: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def loglikelihoods(self) -> tuple[float, ...]:
        """Of each request, in nats; () where the run shows none (generated answers, edits)."""
        found: list[float] = []
        for number, response in enumerate(self.responses):
            while isinstance(response, list) and len(response) == 1:  # repeats of one request
                response = response[0]
            if isinstance(response, list) and len(response) == 2:
                if str(response[1]) not in ("True", "False"):
                    return ()
                response = response[0]
            asked = self.requests[number] if number < len(self.requests) else ()
            value = _likelihood(response, _scored_text(asked, self.prompt))
            if value is None:
                return ()
            found.append(value)
        return tuple(found)

    @property
    def scored_text(self) -> str | None:
        """The text of its only request that was scored; None of several, or where not shown."""
        texts = {_scored_text(asked, self.prompt) for asked in self.requests}
        return texts.pop() if len(texts) == 1 else None

    @property
    def continuations(self) -> tuple[str, ...]:
        """The second text of each request, () where there is none."""
        texts = [asked[1] if len(asked) > 1 else None for asked in self.requests]
        return tuple(text for text in texts if isinstance(text, str))


def read_lmeval_samples(
    path: Path, metrics: Sequence[tuple[str, str]]
) -> dict[str, tuple[Sample, ...]]:
    """Read a samples file; return each filter's documents in ascending doc_id.

    Args:
        metrics: (metric, filter) of everything the results file reports for the task. Samples
            written before 0.4.8 name neither: then the values are those of the reported metrics,
            and a document's first line is the first filter's, as lm-eval wrote them.

    Raises:
        EvaluationError: for a line that is not a sample, or a document twice under one filter.
        UsageError: for samples without hashes, which lm-eval wrote before 0.4.3.
    """
    filters = list(dict.fromkeys(filter_name for _, filter_name in metrics))
    found: dict[str, dict[int, Sample]] = defaultdict(dict)
    lines: dict[tuple[str, int], int] = {}
    seen: dict[int, int] = defaultdict(int)
    for number, row in read_lines(path):
        where = f"{path}:{number}"
        doc_id = _doc_id(row, where)
        _require_hashes(row, where)
        filter_name = row.get("filter") or _nth(filters, seen[doc_id], doc_id, where)
        if not isinstance(filter_name, str):
            raise EvaluationError(f"{where}: no sample of lm-eval: its 'filter' is not a name")
        seen[doc_id] += 1
        if doc_id in found[filter_name]:
            raise EvaluationError(
                f"{where}: document {doc_id} stands here twice under filter '{filter_name}' "
                f"(first in line {lines[filter_name, doc_id]})",
                hint="two runs were written into one file: make the run once more",
            )
        lines[filter_name, doc_id] = number
        try:
            found[filter_name][doc_id] = _sample(row, doc_id, filter_name, metrics)
        except RecursionError as error:
            raise EvaluationError(f"{where}: no sample of lm-eval: nested too deep") from error
    if not found:
        raise EvaluationError(f"{path}: the file is empty", hint="make the run once more")
    return {
        filter_name: tuple(documents[doc_id] for doc_id in sorted(documents))
        for filter_name, documents in found.items()
    }


def _doc_id(row: Any, where: str) -> int:
    found = row.get("doc_id") if isinstance(row, dict) else None
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise EvaluationError(f"{where}: no sample of lm-eval: it has no 'doc_id'")
    return found


def _require_hashes(row: Mapping[str, Any], where: str) -> None:
    missing = [name for name in _HASHES if not isinstance(row.get(name), str)]
    if missing:
        raise UsageError(
            f"{where}: the sample has no {', '.join(missing)}: without them it cannot be known "
            "whether both runs answered the same documents",
            hint="lm-eval writes them since 0.4.3: make the run once more with a newer one",
        )


def _nth(filters: Sequence[str], n: int, doc_id: int, where: str) -> str:
    if n < len(filters):
        return filters[n]
    raise EvaluationError(
        f"{where}: document {doc_id} stands here {n + 1} times, the results file reports "
        f"{len(filters)} filters",
        hint="two runs were written into one file: make the run once more",
    )


def _sample(
    row: Mapping[str, Any], doc_id: int, filter_name: str, metrics: Sequence[tuple[str, str]]
) -> Sample:
    names, requests = row.get("metrics"), _requests(row.get("arguments"))
    prompt = next((asked[0] for asked in requests if asked and isinstance(asked[0], str)), None)
    if not isinstance(names, list):
        names = [metric for metric, of_filter in metrics if of_filter == filter_name]
    return Sample(
        doc_id=doc_id,
        doc_hash=intern(row["doc_hash"]),  # of both sides and all filters one text
        prompt_hash=intern(row["prompt_hash"]),
        target_hash=intern(row["target_hash"]),
        items={name: row[name] for name in names if isinstance(name, str) and name in row},
        sound=not _holds_nan(row.get("resps")),
        answers=_answers(row.get("resps")),
        asked=request_hash(requests) if requests else "",
        doc=row.get("doc"),
        target=str(row.get("target", "")),
        prompt=prompt,
        requests=tuple(
            (None, *asked[1:]) if asked and asked[0] == prompt else tuple(asked)
            for asked in requests
        ),
        responses=_listed(row.get("resps")),
        filtered=_listed(row.get("filtered_resps")),
    )


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else ()


def _requests(arguments: Any) -> list[list[Any]]:
    """The arguments of each request; [] where the run does not show them all.

    They stand as {"gen_args_0": {"arg_0": ...}}, before 0.4.3 as a list of lists.
    """
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments
    if not isinstance(requests, list):
        return []
    texts = [list(r.values()) if isinstance(r, dict) else r for r in requests]
    return texts if all(isinstance(asked, list) for asked in texts) else []


def _answers(responses: Any) -> int:
    """Different generated texts of the request that has most: [[text, text, ...], ...]."""
    of_requests = responses if isinstance(responses, list) else []
    texts = [r for r in of_requests if isinstance(r, list) and all(isinstance(t, str) for t in r)]
    return max((len(set(repeats)) for repeats in texts), default=1)


def _holds_nan(responses: Any) -> bool:
    """Whether any (log-likelihood, is greedy) is NaN; lm-eval writes both as text or as values."""
    if not isinstance(responses, list):
        return False
    if len(responses) == 2 and str(responses[1]) in ("True", "False"):
        return str(responses[0]).lower() == "nan"
    return any(_holds_nan(response) for response in responses)


# Rows of a stored run's documents: what was asked and answered, as a run folder keeps it.


_READABLE = json.JSONEncoder(ensure_ascii=False)
Answer = tuple[float | None, bool | None, str | None]
_NOTHING: Answer = (None, None, None)


def document_rows(
    by_filter: Mapping[str, Sequence[Sample]], fallbacks: Mapping[str, str | None]
) -> tuple[Mapping[str, Value], ...]:
    """Return one row per document, in ascending doc_id, with the columns of a scored model's.

    What a run does not show is None. Of ``arguments``, JSON texts, a context that is the prompt
    is null: a run writes it once for each continuation. There is no log-probability of a token.

    Args:
        fallbacks: of a task that generates, what filters give where they find nothing
            (``Results.fallbacks``).
    """
    found: dict[int, dict[str, Sample]] = {}
    for filter_name, samples in by_filter.items():
        for sample in samples:
            found.setdefault(sample.doc_id, {})[filter_name] = sample
    return tuple(_row(found[doc_id], fallbacks) for doc_id in sorted(found))


def _row(
    of_filters: Mapping[str, Sample], fallbacks: Mapping[str, str | None]
) -> Mapping[str, Value]:
    first = next(iter(of_filters.values()))
    answers = [_answer(*one, prompt=first.prompt) for one in _document_requests(first)]
    return {
        "doc_id": first.doc_id,
        "doc": _READABLE.encode(first.doc),
        "prompt": first.prompt,
        "target": first.target,
        "doc_hash": first.doc_hash,
        "prompt_hash": first.prompt_hash,
        "target_hash": first.target_hash,
        "arguments": [_READABLE.encode(asked) for asked in first.requests],
        "loglikelihood": [answer[0] for answer in answers],
        "is_greedy": [answer[1] for answer in answers],
        "text": [answer[2] for answer in answers],
        "token_logprobs": [None] * len(answers),
        "scores": json.dumps({name: dict(one.items) for name, one in of_filters.items()}),
        "generated": _generated(of_filters, fallbacks, [answer[2] for answer in answers]),
    }


def _generated(
    of_filters: Mapping[str, Sample],
    fallbacks: Mapping[str, str | None],
    texts: Sequence[str | None],
) -> str:
    """What is known of a document's first answer beside its text; "" where none was generated.

    Why it ended is not in a run's files.
    """
    if not fallbacks or not texts or texts[0] is None:
        return ""
    missing = {
        name: (unfound,)
        for name, one in of_filters.items()
        if (unfound := found_nothing(one, name, fallbacks)) is not None
    }
    unknown: list[Ending] = ["" for _ in texts]
    return GeneratedDocument(ended=unknown, missing=missing).written


def first_text(sample: Sample) -> str | None:
    """The first text that the model generated for a document; None where the run shows none."""
    requests = _document_requests(sample)
    return _answer(*requests[0], prompt=sample.prompt)[2] if requests else None


def found_nothing(
    sample: Sample, filter_name: str, fallbacks: Mapping[str, str | None]
) -> bool | None:
    """Whether a filter found no answer in a document's text; None where that is not known."""
    text = first_text(sample)
    if text is None or not sample.filtered or filter_name not in fallbacks:
        return None
    fallback, given = fallbacks[filter_name], sample.filtered[0]
    gave_up = isinstance(given, str) and fallback is not None and _is_same(given, fallback)
    return gave_up or not text.strip()


def _is_same(given: str, fallback: str) -> bool:
    """Whether a filter's answer is its fallback, which later steps may strip and change in case."""
    return given.strip().casefold() == fallback.strip().casefold()


def _document_requests(sample: Sample) -> list[tuple[Any, Any]]:
    """What was asked and answered, request by request; None for what is not shown."""
    count = max(len(sample.requests), len(sample.responses))
    return [
        (
            sample.requests[n] if n < len(sample.requests) else None,
            sample.responses[n] if n < len(sample.responses) else None,
        )
        for n in range(count)
    ]


def _answer(asked: Any, response: Any, *, prompt: str | None) -> Answer:
    """The first of a request's answers; lm-eval writes numbers as text or as they are."""
    first = response[0] if isinstance(response, list) and response else response
    if isinstance(first, list) and len(first) == 2:
        return _likelihood(first[0], _scored_text(asked, prompt)), str(first[1]) == "True", None
    if asked is not None and len(asked) == 1:  # a whole text: its log-likelihood alone
        return _likelihood(first, _scored_text(asked, prompt)), None, None
    return (None, None, first) if isinstance(first, str) else _NOTHING


def _scored_text(asked: Any, prompt: str | None) -> str | None:
    """The text of a request that is scored: its continuation, or the whole text, the prompt."""
    text = (prompt if asked[-1] is None else asked[-1]) if asked else None
    return text if isinstance(text, str) else None


def _likelihood(value: Any, text: str | None) -> float | None:
    """In nats; None where it is no number."""
    try:
        return restore_infinity(float(value), text=text)
    except (TypeError, ValueError):
        return None


# What a stored run's model answered, document by document, as one metric sees it.


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
