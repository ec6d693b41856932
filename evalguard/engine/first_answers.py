"""The first answers to a task that generates: most of them cut, empty, or without an answer?

Looked at as soon as they are there, so that hours are not spent on texts that a limit cuts. They
are those of the run itself: no document is asked for this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evalguard.answers.document_figures import WrittenAnswer, measure_figure
from evalguard.core.chat import leaves_thinking_open
from evalguard.core.findings import Finding
from evalguard.core.scorer import LENGTH_NAMES, Request, Response, Scorer
from evalguard.errors import EvaluationError
from evalguard.harness.requests import TaskRequests, documents_of
from evalguard.harness.scored_answers import look_for_answers

_FEWEST = 8  # answers; fewer say little
# A limit below this is meant to cut: a letter, a number, a word.
_MEANT = 16
_HARDLY_ANY = 0.1
LOST_END = (
    "compare what ends a text: eos_token_id (generation_config.json, config.json), the tokenizer's "
    "eos_token, stop strings (until)"
)
GO_ON = "the run goes on, and Ctrl-C loses nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAnswers:
    """What became of a model's first answers to a task.

    Attributes:
        n: answers that were looked at.
        limit: tokens that a text may have; None where the task does not say.
        cut: that ended at this limit; ``empty``: nothing but white space, and no tool call.
        unclosed: that end inside of a thinking part, cut or at a stop string.
        loops: that repeat themselves until their end.
        unfound: in which no filter finds an answer; None where no filter looks for one.
        cut_unfound: of the cut ones, those.
        ends_in: a model whose first answers to the task end by themselves; "" where none is known.
    """

    model: str
    task: str
    n: int
    limit: int | None
    cut: int
    empty: int
    unclosed: int
    loops: int
    unfound: int | None
    cut_unfound: int
    ends_in: str = ""

    @property
    def ends(self) -> bool:
        """Whether hardly any is cut, so that what ends a text and the limit fit the task."""
        return self.cut <= self.n * _HARDLY_ANY

    @property
    def fail(self) -> bool:
        """Whether most of them say little about what the model knows."""
        if max(self.empty, self.unclosed) > self.n / 2 or self.unfound == self.n:
            return True
        meant = self.limit is not None and self.limit < _MEANT
        answered = self.unfound is not None and self.cut_unfound <= self.cut / 2
        return self.cut > self.n / 2 and not meant and not answered

    @property
    def text(self) -> str:
        """What is wrong with them, and which option mends it."""
        faults = []
        if self.cut > self.n / 2:
            at = "the token limit" if self.limit is None else f"max_gen_toks={self.limit:,}"
            faults.append(f"{self.cut:,} are cut at {at}")
        if self.unclosed:
            faults.append(f"{self.unclosed:,} end inside of a thinking part")
        if self.loops:
            faults.append(f"{self.loops:,} loop")
        if self.empty > self.n / 2:
            faults.append(f"{self.empty:,} are empty")
        if self.unfound:
            faults.append(f"no filter finds an answer in {self.unfound:,}")
        return (
            f"of the first {self.n:,} answers of {self.model} {', '.join(faults)}: {self._remedy}"
        )

    @property
    def _remedy(self) -> str:
        if self.loops > self.n / 2:
            return "more tokens will not help; look at chat template, stop strings and weights"
        if self.cut > self.n / 2 and self.ends_in and self.unclosed <= self.n / 2:
            return f"those of {self.ends_in} end by themselves; {LOST_END}"
        if self.cut > self.n / 2:
            tokens = "N" if self.limit is None else str(4 * self.limit)
            return f"--gen_kwargs max_gen_toks={tokens} lets it finish"
        if self.unclosed > self.n / 2:
            return "look at the stop strings of the task (until), which thinking may hold, too"
        if self.empty > self.n / 2:
            return "look at stop strings, chat template and end-of-text token"
        return "look at prompt, chat template and filter"

    @property
    def finding(self) -> Finding:
        """The same for readers of the report."""
        return Finding(
            kind="first_answers_fail",
            text=self.text,
            task=self.task,
            values={
                "model": self.model,
                "answers": self.n,
                "max_gen_toks": self.limit,
                "cut": self.cut,
                "empty": self.empty,
                "unclosed_thinking": self.unclosed,
                "loops": self.loops,
                "no_answer": self.unfound,
                "ends_in": self.ends_in,
            },
        )


@dataclass(slots=True, kw_only=True)
class FirstAnswersWatch:
    """Looks at the first answers of a model to a task, once.

    Attributes:
        scorer: the model itself.
        requests: of the task, as this model is asked them.
    """

    model: str
    scorer: Scorer
    requests: TaskRequests
    _told: dict[tuple[int, int], Response] = field(default_factory=dict)
    _looked: bool = False

    def take(self, asked: Sequence[Request], told: Sequence[Response]) -> FirstAnswers | None:
        """Take answers as they come; return what the first ones are, once there are enough."""
        if self._looked or not asked or asked[0].kind != "generate_until":
            return None
        for request, response in zip(asked, told, strict=True):
            self._told[request.doc_id, request.index] = response
        if len(self._told) < min(_FEWEST, len(self.requests.requests)):
            return None
        self._looked = True
        return look_at_answers(self.model, self.requests, self._told)


def find_failing_answers(found: Sequence[FirstAnswers]) -> Iterator[Finding]:
    """One finding for each model: the first task, and in how many more it is so."""
    for model in dict.fromkeys(answers.model for answers in found):
        first, *rest = (answers for answers in found if answers.model == model)
        yield _of_tasks(first.finding, tuple(answers.task for answers in rest))


def join_failing_answers(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Findings in their order, with one in place of two that say the same of two models.

    It has both in ``models``.
    """
    remaining = list(findings)
    while remaining:
        first = remaining.pop(0)
        same = [finding for finding in remaining if _say_the_same(first, finding)]
        remaining = [finding for finding in remaining if finding not in same]
        names = [str(finding.values["model"]) for finding in (first, *same)] if same else []
        yield _of_models(first, names) if same else first


def _say_the_same(one: Finding, other: Finding) -> bool:
    if one.kind != "first_answers_fail" or (one.kind, one.task) != (other.kind, other.task):
        return False
    return {**one.values, "model": ""} == {**other.values, "model": ""}


def _of_models(finding: Finding, names: Sequence[str]) -> Finding:
    values: dict[str, Any] = dict(finding.values)
    joined = FirstAnswers(
        model=f"{' and '.join(names)} each",
        task=finding.task,
        n=values["answers"],
        limit=values["max_gen_toks"],
        cut=values["cut"],
        empty=values["empty"],
        unclosed=values["unclosed_thinking"],
        loops=values["loops"],
        unfound=values["no_answer"],
        cut_unfound=0,
        ends_in=values.get("ends_in", ""),
    ).finding
    joined = _of_tasks(joined, values.get("more_tasks", ()))
    return replace(joined, values={**joined.values, "model": names[0], "models": tuple(names)})


def _of_tasks(finding: Finding, more: tuple[str, ...]) -> Finding:
    """A finding of a task that is one of more tasks, too."""
    if not more:
        return finding
    tasks = f"{len(more):,} more task{'' if len(more) == 1 else 's'}"
    values = {**finding.values, "more_tasks": more}
    return replace(finding, text=f"{finding.text} (and so in {tasks})", values=values)


def look_at_answers(
    model: str, requests: TaskRequests, told: Mapping[tuple[int, int], Response]
) -> FirstAnswers | None:
    """Look at answers by (doc_id, index), of documents that are answered whole.

    Returns:
        None where there are none, or the task's own filters fail: scoring will say so.
    """
    asked = [request for request in requests.requests if request.kind == "generate_until"]
    open_ = {request.doc_id for request in asked if (request.doc_id, request.index) not in told}
    answered = [request for request in asked if request.doc_id not in open_]
    if not answered:
        return None
    part = documents_of(requests, {request.doc_id for request in answered})
    texts = [told[request.doc_id, request.index] for request in answered]
    missing = _missing(part, texts) if len(part.requests) == len(answered) else None
    written = [*map(_written, answered, texts)]
    cut = [measure_figure("cut", answer) == 1.0 for answer in written]
    return FirstAnswers(
        model=model,
        task=requests.task,
        n=len(texts),
        limit=_limit(answered),
        cut=sum(cut),
        empty=_count("empty", written),
        unclosed=_count("unclosed_thinking", written),
        loops=_count("loops", written),
        unfound=None if missing is None else sum(missing),
        cut_unfound=0
        if missing is None
        else sum(a and b for a, b in zip(cut, missing, strict=True)),
    )


def _written(request: Request, one: Response) -> WrittenAnswer:
    return WrittenAnswer(
        text=one.text or "",
        ended=one.ended,
        message=one.message,
        tokens=one.generated,
        thinking_open=leaves_thinking_open(str(request.arguments[0])),
    )


def _count(figure: str, written: Sequence[WrittenAnswer]) -> int:
    return sum(measure_figure(figure, answer) == 1.0 for answer in written)


def _missing(part: TaskRequests, texts: Sequence[Response]) -> list[bool] | None:
    """Of each text, whether no filter finds an answer; None where none looks for one."""
    try:
        by_filter = look_for_answers(part, texts)
    except EvaluationError:
        return None
    looking = [
        answers.missing for answers in by_filter.values() if answers.extracts and answers.missing
    ]
    if not looking:
        return None
    missing = [
        [all(of[doc_id][at] for of in looking) for at in range(len(looking[0][doc_id]))]
        for doc_id in part.doc_ids
    ]
    flat = [is_missing for of in missing for is_missing in of]
    return flat if len(flat) == len(texts) else None


def _limit(asked: Sequence[Request]) -> int | None:
    options = asked[0].arguments[-1]
    if not isinstance(options, Mapping):
        return None
    given = [options[name] for name in LENGTH_NAMES if options.get(name) is not None]
    return int(given[0]) if given and isinstance(given[0], (int, float, str)) else None
