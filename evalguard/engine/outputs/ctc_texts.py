"""Texts of CTC outputs: the names of classes, greedy decoding, word and character error rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from evalguard.errors import EvaluationError, UsageError
from evalguard.installation import extra_command

# Names of CTC's blank: that of transformers' tokenizers, whose blank is what they pad with, and of
# NeMo, ESPnet and fairseq.
_BLANKS = ("<pad>", "[PAD]", "<blank>", "<blk>", "<ctc_blank>")
_SPACES = ("|", "▁")  # of words, in wav2vec 2.0's vocabularies and in SentencePiece's
_HOW = "lay the tokenizer's vocab.json there, or write vocabulary: [...], a name for each class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Names of classes, in their order, and which of them is CTC's blank."""

    names: tuple[str, ...]
    blank: int

    def decode(self, classes: Sequence[int]) -> str:
        """The text of the most likely class of each frame: repeats are one, blanks are none.

        Greedy CTC decoding (A. Graves et al., 2006, section 3.2, best path).
        """
        symbols = [self.names[number] for number, _ in groupby(classes) if number != self.blank]
        text = "".join(" " if symbol in _SPACES else symbol for symbol in symbols)
        return " ".join(text.replace(_SPACES[1], " ").split())


def read_vocabulary(folder: Path, given: Any = None, blank: Any = None) -> Vocabulary | None:
    """Read the names of classes from vocab.json of a dump, or as its config.yaml gives them.

    Args:
        given: vocabulary of config.yaml: a list of names; None: the file.
        blank: of config.yaml, the blank's name or number; None: the one with a usual name.

    Returns:
        None where neither names any class.

    Raises:
        UsageError: they are no names of classes 0, 1, ..., or it is not clear which is the blank.
    """
    file = folder / "vocab.json"
    where = "vocabulary in config.yaml" if given is not None else str(file)
    if given is None:
        if not file.is_file():
            return None
        try:
            given = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
    if isinstance(given, dict):
        numbers = {number: name for name, number in given.items()}
        given = [numbers.get(number) for number in range(len(numbers))]
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{where} does not name the classes 0, 1, ... by texts", hint=_HOW)
    names = tuple(given)
    usual = [number for number, name in enumerate(names) if name in _BLANKS]
    if blank is None and len(usual) == 1:
        blank = usual[0]
    if isinstance(blank, str) and names.count(blank) == 1:
        blank = names.index(blank)
    if not isinstance(blank, int) or not 0 <= blank < len(names):
        raise UsageError(
            f"{where}: which of the {len(names)} classes is CTC's blank is not known",
            hint="write blank: NUMBER or blank: NAME into config.yaml",
        )
    return Vocabulary(names=names, blank=blank)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """Errors of texts: a share of the words, or characters, of each one's reference; (n,) each.

    Substituted, left out and put in ones count, so that a rate may be above 1. ``*_of_all`` are
    errors over words, or characters, of all documents: what is published as a corpus's rate.
    """

    words: tuple[float, ...]
    characters: tuple[float, ...]
    words_of_all: float
    characters_of_all: float


def error_rates(references: Sequence[str], texts: Sequence[str]) -> ErrorRates:
    """Compare decoded texts with what was said, as written: capitals and marks count.

    Raises:
        EvaluationError: jiwer, which counts the errors, is not installed.
    """
    try:
        import jiwer
    except ImportError as error:
        raise EvaluationError(
            "word and character error rates need jiwer, which is not installed",
            hint=f"{extra_command('ctc')}; without text.txt there are none",
        ) from error
    pairs = list(zip(references, texts, strict=True))
    return ErrorRates(
        words=tuple(float(jiwer.wer(reference, text)) for reference, text in pairs),
        characters=tuple(float(jiwer.cer(reference, text)) for reference, text in pairs),
        words_of_all=float(jiwer.wer(list(references), list(texts))),
        characters_of_all=float(jiwer.cer(list(references), list(texts))),
    )
