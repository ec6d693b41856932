"""Numbers of two dumps, document by document: labels, texts, the base's own classes, distances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from evalguard.core.divergence import DocumentDivergence, divergence
from evalguard.core.logprob_rows import Float as Floats
from evalguard.core.scores import UninformativeKind
from evalguard.engine.outputs.ctc_texts import Vocabulary, error_rates
from evalguard.engine.outputs.dump_pair import IGNORED, DumpPair, Labels, PairedOutput, Rows
from evalguard.errors import EvaluationError
from evalguard.stats.uninformative import WITHOUT_ANSWER

# Metrics: mean log-probabilities of a row's label, or of a class drawn as the base would; shares.
EXPECTED, LABEL, ACCURACY = "expected_logprob", "label_logprob", "acc"
WORDS, CHARACTERS = "wer", "cer"
ERROR, COSINE = "relative_error", "cosine"
# Float32 leaves less of a sum of probabilities than this, and nothing else sums to 1 in all rows.
_SUMS_TO_ONE = 1e-3
_ROUNDING = 1e-6  # of float32, beside the largest number
# A text of which so much is wrong is none of the reference's, whatever is right by chance.
_MEAN_RATE = "mean over documents of each one's rate; over the {} of all documents together {}"
_LEAST_VARIANCE = 1e-6  # else what rounds a dead channel would be all there is to see
_ALL_WRONG, _STANDARD_ERRORS = 0.9, 2.0


@dataclass(slots=True, kw_only=True)
class DocumentNumbers:
    """One metric of both sides, a number a document.

    ``distance``: from the base, whose own is the same in every document. ``said``: how each side's
    numbers were made, "" where there is nothing to add.
    """

    higher_is_better: bool = True
    distance: bool = False
    base: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    said: tuple[str, str] = ("", "")


@dataclass(slots=True, kw_only=True)
class OutputNumbers:
    """What both models put out at one point, in numbers.

    Attributes:
        task: name that it has in reports.
        metrics: by name.
        answers: texts or classes of each side, a document each; () where there are none.
        likelihoods: of each side, log-probabilities of the classes that are scored, a document
            each, shape (rows,); [] of states.
        divergences: of the distributions, a document each; [] where they are not compared.
        silent: (side, metric) -> why its numbers say nothing of the model.
    """

    task: str
    metrics: dict[str, DocumentNumbers] = field(default_factory=dict)
    answers: tuple[Sequence[str], Sequence[str]] = ((), ())
    likelihoods: tuple[list[Floats], list[Floats]] = field(default_factory=lambda: ([], []))
    divergences: list[DocumentDivergence] = field(default_factory=list)
    silent: dict[tuple[int, str], UninformativeKind] = field(default_factory=dict)

    @property
    def answered(self) -> str:
        """The metric that is one of answers."""
        return next(
            (metric for metric in (WORDS, ACCURACY, EXPECTED) if metric in self.metrics), ""
        )

    def add(self, name: str, base: float, candidate: float) -> None:
        """Add a document's numbers of a metric, of which more is better."""
        numbers = self.metrics.setdefault(name, DocumentNumbers())
        numbers.base.append(base)
        numbers.candidate.append(candidate)


def score_states(pair: DumpPair, task: str, point: str = "") -> OutputNumbers:
    """Compare states: error in units of the base's spread, and cosine to the base's.

    ``relative_error`` of a document is the root of the mean over channels of the mean squared
    difference of a channel divided by the base's variance of it, over all rows of all documents:
    a few huge channels hide nothing of the others. ``cosine`` is the mean over a document's rows.
    The base's own are 0 and 1, and have no standard error.
    """
    numbers, spread, looks = OutputNumbers(task=task), _Spread(), (_Look(), _Look())
    squares: list[Floats] = []
    for document in pair.read(point):
        _look_at(looks, (document.base, document.candidate))
        sound = bool(np.isfinite(document.base).all())
        if sound:
            spread.add(document.base)
        with np.errstate(all="ignore"):
            squares.append(np.square(document.candidate - document.base).mean(axis=0))
            numbers.add(COSINE, 1.0 if sound else np.nan, _cosine(document))
    with np.errstate(all="ignore"):
        errors = [float(np.sqrt(np.mean(of / spread.variances()))) for of in squares]
    own = [1.0 - cosine for cosine in numbers.metrics[COSINE].base]
    numbers.metrics = {
        ERROR: DocumentNumbers(higher_is_better=False, distance=True, base=own, candidate=errors),
        COSINE: replace(numbers.metrics[COSINE], distance=True),
    }
    _note_constant(numbers, looks)
    return numbers


def score_logits(pair: DumpPair, task: str, *, distributions: bool = True) -> OutputNumbers:
    """Compare logits: by labels or by the base's own distribution, as texts, as distributions.

    Without labels a document's number is the mean over rows of sum p log q, with p the base's
    probabilities: of the base its negative entropy, of the candidate that less KL(base ||
    candidate). No change of p is a gain, as a sharper softmax is of the most likely class alone.

    Args:
        distributions: keep KL and the most likely classes of every row.

    Raises:
        EvaluationError: these are no logits, or not of these labels or this vocabulary.
    """
    numbers, looks = OutputNumbers(task=task), (_Look(), _Look())
    tops: list[tuple[Labels, Labels]] = []
    for number, document in enumerate(pair.read()):
        _check_logits(pair, document, pair.documents[number])
        with np.errstate(all="ignore"):
            base, candidate = (
                log_softmax(document.base, axis=1),
                log_softmax(document.candidate, axis=1),
            )
        _look_at(looks, (base, candidate))
        # of a row without numbers the first class, whose log-probability is none either
        top = base.argmax(axis=1), candidate.argmax(axis=1)
        tops.append(top)
        ids, known = _labels_of(pair, number, top[0], base.shape[1])
        rows = np.arange(len(ids))
        given = [side[rows, ids][known] for side in (base, candidate)]
        broken = [bool(np.isnan(side).any()) for side in (base, candidate)]
        for side, values in enumerate(given):
            numbers.likelihoods[side].append(values)
        if pair.labels is None:
            numbers.add(EXPECTED, _expected(base, base), _expected(base, candidate))
        else:
            numbers.add(LABEL, *(float(values.mean()) for values in given))
            right = [float((of == ids)[known].mean()) for of in top]
            numbers.add(ACCURACY, *np.where(broken, np.nan, right).tolist())
        if distributions:
            compared = divergence(base, candidate, ids)
            numbers.divergences.append(DocumentDivergence(doc_id=number, requests=(compared,)))
    _note_chance(numbers, pair)
    _note_one_class(numbers, tops)
    if pair.vocabulary is not None:
        _add_texts(numbers, pair, pair.vocabulary, tops)
    elif all(len(of) == 1 for of, _ in tops):
        numbers.answers = [str(of[0]) for of, _ in tops], [str(of[0]) for _, of in tops]
    _note_constant(numbers, looks)
    return numbers


def _check_logits(pair: DumpPair, one: PairedOutput, document: str) -> None:
    for path, rows in zip(pair.paths, (one.base, one.candidate), strict=True):
        where = f"{path}, document {document}: "
        classes = rows.shape[1]
        if classes < 2:
            raise EvaluationError(
                f"{where}one class is nothing to choose from",
                hint="output: hidden in config.yaml, if this is a number that the model computes",
            )
        if np.all(rows >= 0.0) and np.all(np.abs(rows.sum(axis=1) - 1.0) < _SUMS_TO_ONE):
            raise EvaluationError(
                f"{where}these are probabilities, of which a softmax would be taken once more",
                hint="dump logits, or the logarithms of the probabilities",
            )
        if pair.vocabulary is not None and len(pair.vocabulary.names) != classes:
            raise EvaluationError(
                f"{where}the vocabulary names {len(pair.vocabulary.names)} classes, and the output "
                f"has {classes}",
                hint="give the vocabulary of this model; is this the output, and not a state?",
            )


def _labels_of(
    pair: DumpPair, number: int, top: Labels, classes: int
) -> tuple[Labels, NDArray[np.bool_]]:
    """The class of each row that is scored, and whether the row counts.

    Without labels, and in rows that do not count, it is ``top``, the base's own most likely one.
    """
    count = len(top)
    if pair.labels is None:
        return top, np.ones(count, dtype=np.bool_)
    labels, name = pair.labels[number], pair.documents[number]
    if len(labels) not in (1, count):
        raise EvaluationError(
            f"document {name}: {len(labels)} labels for {count} rows of the output",
            hint="labels are classes, one a row or one a document; a transcript stands in text.txt",
        )
    labels = np.broadcast_to(labels, (count,))
    known: NDArray[np.bool_] = labels != IGNORED
    wrong = labels[known & ((labels < 0) | (labels >= classes))]
    if wrong.size or not known.any():
        what = f"label {wrong[0]} is none of {classes} classes" if wrong.size else "no label counts"
        raise EvaluationError(
            f"document {name}: {what}",
            hint=f"classes are counted from 0, and {IGNORED} leaves a row out; are these labels of "
            "this model, and is this its output?",
        )
    return np.where(known, labels, top), known


def _add_texts(
    found: OutputNumbers,
    pair: DumpPair,
    vocabulary: Vocabulary,
    tops: Sequence[tuple[Labels, Labels]],
) -> None:
    """Add what both sides' most likely classes say, and its errors where a reference is known."""
    texts = tuple([vocabulary.decode(of[side].tolist()) for of in tops] for side in (0, 1))
    base, candidate = texts
    empty = [_share(not text for text in of) >= WITHOUT_ANSWER for of in texts]
    if not empty[0]:
        found.answers = base, candidate
    if pair.texts:
        rates = [error_rates(pair.texts, of) for of in texts]
        known = [[not np.isnan(of).any() for of in side] for side in found.likelihoods]
        for name, unit in ((WORDS, "words"), (CHARACTERS, "characters")):
            of_base, of_candidate = (
                np.where(sound, getattr(of, unit), np.nan).tolist()
                for of, sound in zip(rates, known, strict=True)
            )
            totals = [f"{100.0 * getattr(of, f'{unit}_of_all'):.4g}%" for of in rates]
            found.metrics[name] = DocumentNumbers(
                higher_is_better=False,
                base=of_base,
                candidate=of_candidate,
                said=(_MEAN_RATE.format(unit, totals[0]), _MEAN_RATE.format(unit, totals[1])),
            )
        for side, of in enumerate(rates):
            if _share(rate >= _ALL_WRONG for rate in of.words) >= WITHOUT_ANSWER:
                found.silent |= {(side, WORDS): "at_chance", (side, CHARACTERS): "at_chance"}
    for side in (0, 1):
        if empty[side]:
            found.silent |= dict.fromkeys(((side, name) for name in found.metrics), "empty")


def _share(flags: Iterator[bool]) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)


def _note_chance(found: OutputNumbers, pair: DumpPair) -> None:
    """Note the sides that labels fit no better than one label for all of them would.

    A document's accuracy less the share of the commonest label in it has to be above 0, on the
    mean over documents, by two of its standard errors.
    """
    if pair.labels is None:
        return
    counted = [of[of != IGNORED] for of in pair.labels]
    commonest = np.bincount(np.concatenate(counted)).argmax()
    guessed = np.array([float((of == commonest).mean()) for of in counted])
    numbers = found.metrics[ACCURACY]
    for side, values in enumerate((numbers.base, numbers.candidate)):
        above = np.array(values) - guessed
        if not np.isfinite(above).all() or len(above) < 2:
            continue
        error = float(above.std(ddof=1)) / len(above) ** 0.5
        if above.mean() <= _STANDARD_ERRORS * error:
            found.silent |= {(side, ACCURACY): "at_chance", (side, LABEL): "at_chance"}


def _note_one_class(found: OutputNumbers, tops: Sequence[tuple[Labels, Labels]]) -> None:
    """Note the sides whose most likely class is one in all rows, where the base's is scored."""
    if EXPECTED not in found.metrics or len(tops) < 2:
        return
    for side in (0, 1):
        if len({int(label) for of in tops for label in np.unique(of[side])}) == 1:
            found.silent[side, EXPECTED] = "one_answer"


def _expected(base: Rows, of: Rows) -> float:
    """Mean over rows of the log-probability that ``of`` gives a class drawn from ``base``."""
    p = np.exp(base)
    with np.errstate(invalid="ignore"):  # of 0 times -inf, which is not drawn
        return float(np.where(p == 0.0, 0.0, p * of).sum(axis=1).mean())


def _cosine(one: PairedOutput) -> float:
    """Mean cosine of the rows; two rows of zeros are alike, and one is like no other."""
    dots = np.sum(one.base * one.candidate, axis=1)
    norms = np.linalg.norm(one.base, axis=1) * np.linalg.norm(one.candidate, axis=1)
    alike = np.all(one.base == one.candidate, axis=1)
    return float(np.mean(np.where(norms == 0.0, alike, np.clip(dots / norms, -1.0, 1.0))))


class _Spread:
    """Variances of channels over the rows that were added."""

    def __init__(self) -> None:
        self._first: Rows | None = None
        self._count = 0

    def add(self, rows: Rows) -> None:
        """Take in rows, shape (rows, channels)."""
        if self._first is None:
            self._first, width = rows[0], rows.shape[1]
            self._sums, self._squares = np.zeros(width), np.zeros(width)
        moved = rows - self._first  # no digits are lost where all channels have large means
        self._count += len(rows)
        self._sums += moved.sum(axis=0)
        self._squares += np.square(moved).sum(axis=0)

    def variances(self) -> Floats:
        """Of each channel, shape (channels,); of one that hardly moves a millionth of the mean.

        1 where no channel moves, or nothing was added: of such a base nothing is said.
        """
        if self._first is None:
            return np.ones(1)
        means = self._sums / self._count
        variances: Floats = np.maximum(self._squares / self._count - means**2, 0.0)
        return (
            np.maximum(variances, _LEAST_VARIANCE * variances.mean())
            if variances.any()
            else variances + 1.0
        )


class _Look:
    """Whether one side's outputs depend on nothing: all rows are one, or all documents are."""

    def __init__(self) -> None:
        self._first: Rows | None = None
        self._documents = 0
        self._one_row = self._one_document = True

    def add(self, rows: Rows) -> None:
        """Take in a document; one that holds NaN is like no other."""
        first = rows if self._first is None else self._first
        self._first, self._documents = first, self._documents + 1
        self._one_row &= _is_near(rows, first[:1])
        self._one_document &= rows.shape == first.shape and _is_near(rows, first)

    @property
    def constant(self) -> bool:
        """Whether it is so of all that was added."""
        return self._one_row or (self._one_document and self._documents > 1)


def _is_near(rows: Rows, other: Rows) -> bool:
    finite = np.isfinite(other)
    scale = float(np.abs(other[finite]).max()) if finite.any() else 0.0
    return bool(np.allclose(rows, other, rtol=0.0, atol=_ROUNDING * scale))


def _look_at(looks: tuple[_Look, _Look], both: tuple[Rows, Rows]) -> None:
    for look, rows in zip(looks, both, strict=True):
        look.add(rows)


def _note_constant(found: OutputNumbers, looks: tuple[_Look, _Look]) -> None:
    for side, look in enumerate(looks):
        if look.constant:
            found.silent |= dict.fromkeys(((side, name) for name in found.metrics), "constant")
