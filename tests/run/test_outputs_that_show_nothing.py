"""Outputs of which little or nothing can be compared: refused with words, or no pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumped_outputs import OUTPUT, SYMBOLS, Array, make_inputs, make_logits, with_noise, write_dump

import evalguard
from evalguard.comparison.result import CompareResult
from evalguard.errors import EvalguardError

LOGITS, HIDDEN = {"output": "logits"}, {"output": "hidden"}
OUTPUTS, FAVOURED = make_logits()
NEAR = with_noise(OUTPUTS, 1e-5)
INPUTS = make_inputs()
LABELS = list(FAVOURED)
TEXTS = [
    " ".join("".join(SYMBOLS[k] for k, _ in groupby(of.tolist()) if k).replace("|", " ").split())
    for of in FAVOURED
]


class Folders:
    """Where the base and the candidate are written; a base of logits beside its twin by default."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def pair(
        self,
        base: Sequence[Array] = OUTPUTS,
        candidate: Sequence[Array] = NEAR,
        *,
        cand: dict[str, Any] | None = None,
        **of_base: Any,
    ) -> tuple[Path, Path]:
        of_base = {"config": LOGITS, **of_base}
        return (
            write_dump(self.place / "orig", base, **of_base),
            write_dump(self.place / "port", candidate, **(cand or {})),
        )


def replaced(outputs: Sequence[Array], number: int, value: Any) -> list[Array]:
    """The outputs with one number of one document replaced."""
    changed = [one.copy() for one in outputs]
    changed[number][0, 3, 2] = value
    return changed


def without(folders: tuple[Path, Path], *names: str, side: int = 1) -> tuple[Path, Path]:
    """The folders, of which one lacks files or documents."""
    for name in names:
        path = folders[side] / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folders


def constant(outputs: Sequence[Array]) -> list[Array]:
    return [np.broadcast_to(outputs[0][0, 0], one.shape).copy() for one in outputs]


def copied(outputs: Sequence[Array]) -> list[Array]:
    return [outputs[0]] * len(outputs)


def blanks(outputs: Sequence[Array]) -> list[Array]:
    """Blank is the likeliest class everywhere, by as much as it happens to be."""
    return [one + 40.0 * np.eye(10, dtype=np.float32)[0] for one in outputs]


def probabilities(outputs: Sequence[Array]) -> list[Array]:
    powers = [np.exp(one - one.max(axis=-1, keepdims=True)) for one in outputs]
    return [one / one.sum(axis=-1, keepdims=True) for one in powers]


def rolled(values: Sequence[Any]) -> list[Any]:
    return [*values[1:], values[0]]


def of_one_length(outputs: Sequence[Array]) -> list[Array]:
    return [one[:, :20] for one in outputs]


Make = Callable[[Folders], tuple[Path, Path]]

# What is written -> words of the refusal.
REFUSED: dict[str, tuple[Make, str]] = {
    "an empty folder": (
        lambda f: without(f.pair(config=None), *(f"{n:03d}" for n in range(12)), side=1),
        "is a folder of dumped outputs, and port is none|no model or lm-eval run",
    ),
    "a document is missing": (lambda f: without(f.pair(), "004"), "004 is in .*orig alone"),
    "frames are missing": (
        lambda f: f.pair(OUTPUTS, [*NEAR[:3], NEAR[3][:, :-1], *NEAR[4:]]),
        r"document 003: the output is 23 x 10 in .*orig and 22 x 10 in .*port",
    ),
    "another number of classes": (
        lambda f: f.pair(OUTPUTS, [one[..., :9] for one in NEAR]),
        "document 000: the output is 20 x 10",
    ),
    "classes that are not the last axis": (
        lambda f: f.pair([one.swapaxes(1, 2) for one in OUTPUTS], [o.swapaxes(1, 2) for o in NEAR]),
        "has a width of 20 in 000 and of 21 in 001",
    ),
    "several documents in one": (
        lambda f: f.pair(
            [np.concatenate([one, one]) for one in OUTPUTS],
            [np.concatenate([one, one]) for one in NEAR],
        ),
        "is no output of one document",
    ),
    "an output is missing in one document": (
        lambda f: without(
            f.pair(points={"encoder": OUTPUTS}, cand={"points": {"encoder": OUTPUTS}}),
            f"005/{OUTPUT}.npy",
        ),
        r"005 has no \(root\):out: it has encoder:out",
    ),
    "the output has another name": (
        lambda f: f.pair(cand={"name": "logits"}),
        r"000 has no \(root\):out: it has logits:out",
    ),
    "nothing in a document": (
        lambda f: f.pair([*OUTPUTS[:-1], OUTPUTS[-1][:, :0]], [*NEAR[:-1], NEAR[-1][:, :0]]),
        "is empty",
    ),
    "classes that were chosen": (
        lambda f: f.pair(LABELS, LABELS),
        "holds int64: classes that were chosen already",
    ),
    "probabilities": (
        lambda f: f.pair(probabilities(OUTPUTS), probabilities(NEAR)),
        "these are probabilities, of which a softmax would be taken once more",
    ),
    "one class": (
        lambda f: f.pair([one[..., :1] for one in OUTPUTS], [one[..., :1] for one in NEAR]),
        "one class is nothing to choose from",
    ),
    "nobody says what the output is": (
        lambda f: f.pair(config=None),
        "nobody says what the outputs in .*orig are, logits or hidden states",
    ),
    "two sides say otherwise": (
        lambda f: f.pair(cand={"config": HIDDEN}),
        "output is 'logits' in .*orig and 'hidden' in .*port",
    ),
    "a third kind": (lambda f: f.pair(config={"output": "magic"}), "neither logits nor hidden"),
    "states with labels": (
        lambda f: f.pair(config=HIDDEN, labels=LABELS),
        "states have no classes",
    ),
    "states taken for logits of a vocabulary": (
        lambda f: f.pair(
            [one.repeat(5, axis=-1) for one in OUTPUTS],
            [one.repeat(5, axis=-1) for one in NEAR],
            config=None,
            vocabulary=SYMBOLS,
        ),
        "names 10 classes, and the output has 50",
    ),
    "labels of other documents on one side": (
        lambda f: f.pair(
            of_one_length(OUTPUTS),
            of_one_length(NEAR),
            labels=[one[:20] for one in LABELS],
            cand={"labels": rolled([one[:20] for one in LABELS])},
        ),
        "document 000: the labels in .*port are not those in .*orig",
    ),
    "labels of another length": (
        lambda f: f.pair(labels=rolled(LABELS)),
        "document 000: 21 labels for 20 rows",
    ),
    "labels of some documents": (
        lambda f: without(f.pair(labels=LABELS), "002/labels.npy", side=0),
        "has labels of 11 of 12 documents",
    ),
    "labels that are no classes": (
        lambda f: f.pair(labels=[one + 4 for one in LABELS]),
        "is none of 10 classes",
    ),
    "labels of which none counts": (
        lambda f: f.pair(labels=[np.full(len(one), -100) for one in LABELS]),
        "no label counts",
    ),
    "other texts on each side": (
        lambda f: f.pair(
            texts=TEXTS, vocabulary=SYMBOLS, cand={"texts": rolled(TEXTS), "vocabulary": SYMBOLS}
        ),
        "document 000: the texts in",
    ),
    "texts and no vocabulary": (
        lambda f: f.pair(texts=TEXTS),
        "no names of the classes to read a text with",
    ),
    "a vocabulary without a blank": (
        lambda f: f.pair(texts=TEXTS, vocabulary=("#", *SYMBOLS[1:])),
        "which of the 10 classes is CTC's blank is not known",
    ),
    "another vocabulary on each side": (
        lambda f: f.pair(vocabulary=SYMBOLS, cand={"vocabulary": (*SYMBOLS[:-1], "z")}),
        "the names of the classes in .*port are not those in",
    ),
    "a damaged file": (
        lambda f: _cut(f.pair(), "003"),
        "cannot be read|ends|holds",
    ),
}


def _cut(folders: tuple[Path, Path], document: str) -> tuple[Path, Path]:
    file = folders[1] / document / f"{OUTPUT}.npy"
    file.write_bytes(file.read_bytes()[:-100])
    return folders


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused_with_what_to_do(case: str, tmp_path: Path) -> None:
    make, words = REFUSED[case]
    with pytest.raises(EvalguardError, match=words) as raised:
        compare(*make(Folders(tmp_path)))
    assert raised.value.exit_code in (2, 3)
    assert raised.value.hint


# What is written -> exit code, and words of a reason.
NO_PASS: dict[str, tuple[Make, int, str]] = {
    "one document": (
        lambda f: f.pair(OUTPUTS[:1], NEAR[:1]),
        3,
        "needs at least 2 documents, and there is 1",
    ),
    "NaN on both sides": (
        lambda f: f.pair(replaced(OUTPUTS, 2, np.nan), replaced(NEAR, 2, np.nan)),
        3,
        "output 2",
    ),
    "NaN everywhere on both sides": (
        lambda f: f.pair([one * np.nan for one in OUTPUTS], [one * np.nan for one in NEAR]),
        3,
        "output 0",
    ),
    "NaN of the base": (lambda f: f.pair(replaced(OUTPUTS, 2, np.nan), NEAR), 3, "output 2"),
    "NaN of the candidate": (lambda f: f.pair(OUTPUTS, replaced(NEAR, 2, np.nan)), 1, "output 2"),
    "NaN of the base, with labels": (
        lambda f: f.pair(replaced(OUTPUTS, 2, np.nan), NEAR, labels=LABELS),
        3,
        "output 2",
    ),
    "infinite on both sides": (
        lambda f: f.pair(replaced(OUTPUTS, 2, np.inf), replaced(NEAR, 2, np.inf)),
        3,
        "output 2",
    ),
    "NaN in states of both": (
        lambda f: f.pair(replaced(OUTPUTS, 2, np.nan), replaced(NEAR, 2, np.nan), config=HIDDEN),
        3,
        "output 2",
    ),
    "one output in all rows": (
        lambda f: f.pair(constant(OUTPUTS), constant(OUTPUTS)),
        3,
        "of both models, the output of all 12 documents is the same, whatever the input",
    ),
    "one output in all rows of the base": (
        lambda f: f.pair(constant(OUTPUTS), NEAR),
        3,
        "of the base, the output of all 12 documents is the same",
    ),
    "one output in all rows of the candidate": (
        lambda f: f.pair(OUTPUTS, constant(OUTPUTS)),
        1,
        "output expected_logprob",
    ),
    "one document's output for all": (
        lambda f: f.pair(copied(OUTPUTS), copied(NEAR)),
        3,
        "of both models, the output of all 12 documents is the same",
    ),
    "states that are constant": (
        lambda f: f.pair(constant(OUTPUTS), constant(OUTPUTS), config=HIDDEN),
        3,
        "of both models, the output of all 12 documents is the same",
    ),
    "zeros": (
        lambda f: f.pair([0 * one for one in OUTPUTS], [0 * one for one in NEAR], config=HIDDEN),
        3,
        "of both models, the output of all 12 documents is the same",
    ),
    "blanks alone, with texts": (
        lambda f: f.pair(blanks(OUTPUTS), blanks(NEAR), texts=TEXTS, vocabulary=SYMBOLS),
        3,
        "the generated answers to all 12 documents are empty",
    ),
    "blanks alone, without texts": (
        lambda f: f.pair(blanks(OUTPUTS), blanks(NEAR), vocabulary=SYMBOLS),
        3,
        "the generated answers to all 12 documents are empty",
    ),
    "one class alone": (
        lambda f: f.pair(blanks(OUTPUTS), blanks(NEAR)),
        3,
        "all 12 documents are given the same answer",
    ),
    "another model's vocabulary": (
        lambda f: f.pair(texts=TEXTS, vocabulary=("<pad>", *rolled(SYMBOLS[1:]))),
        3,
        "the answers to all 12 documents fit labels or texts no better than by chance",
    ),
    "texts of other documents": (
        lambda f: f.pair(texts=rolled(TEXTS), vocabulary=SYMBOLS),
        3,
        "fit labels or texts no better than by chance",
    ),
    "labels of other documents": (
        lambda f: f.pair(
            of_one_length(OUTPUTS),
            of_one_length(NEAR),
            labels=rolled([one[:20] for one in LABELS]),
        ),
        3,
        "fit labels or texts no better than by chance",
    ),
    "one label for all": (
        lambda f: f.pair(
            [one + 40.0 * np.eye(10, dtype=np.float32)[4] for one in OUTPUTS],
            [one + 40.0 * np.eye(10, dtype=np.float32)[4] for one in NEAR],
            labels=[np.full(len(one), 4) for one in LABELS],
        ),
        3,
        "fit labels or texts no better than by chance",
    ),
    "states without a margin": (
        lambda f: f.pair(config=HIDDEN),
        3,
        "--gate-metric relative_error=1pp",
    ),
}


@pytest.mark.parametrize("case", NO_PASS)
def test_what_shows_nothing_is_never_a_pass(case: str, tmp_path: Path) -> None:
    make, code, words = NO_PASS[case]
    report = compare(*make(Folders(tmp_path))).report
    reasons = [one.reason for one in report.comparisons] + [report.gate.reason]
    assert report.exit_code == code, reasons
    assert not report.gate.passed
    assert any(words in reason for reason in reasons), reasons


def test_a_limit_on_what_was_not_compared_is_no_pass(tmp_path: Path) -> None:
    folders = Folders(tmp_path).pair(config=HIDDEN)
    result = compare(*folders, margin="1pp", gate_limits={"kl_mean": 0.01})
    assert result.exit_code == 3
    folders = Folders(tmp_path / "logits").pair(vocabulary=SYMBOLS)
    result = compare(*folders, gate_limits={"wer": "1pp"})
    assert result.exit_code == 3
    assert "the gate lists wer, and it was not compared" in result.report.comparisons[-1].reason


def compare(base: Path, candidate: Path, **options: Any) -> CompareResult:
    return evalguard.compare(base, candidate, quiet=True, write=False, **options)


def test_inputs_of_one_side_alone_prove_nothing_and_that_is_said(tmp_path: Path) -> None:
    result = compare(*Folders(tmp_path).pair(inputs=INPUTS))
    assert result.exit_code == 0
    (metric,) = result.report.comparisons
    assert any("not both folders keep the inputs" in caveat for caveat in metric.caveats)
