"""Two dumps of the same documents: proved to be that, or refused; read one document at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.exchanged_documents import DocumentOrder
from evalguard.core.trace_points import OUTPUT
from evalguard.engine.outputs.ctc_texts import Vocabulary, read_vocabulary
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.tensor_files.activation_dumps import (
    DumpedActivations,
    list_sequences,
    point_named,
    read_recorded_inputs,
)

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]
LABELS, TEXT = "labels:out", "text.txt"
# Of a label that says nothing, as torch and transformers have it.
IGNORED = -100
_SAME_DOCUMENTS = "dump both models on the same inputs, one folder a document, named alike in both"
_IN_ONE = "correct one, or leave them in one of the two folders alone"
_SAY_WHAT = (
    "say it in config.yaml of either folder: output: logits (before the softmax; KL, accuracy), or "
    "output: hidden (states, embeddings, regressions; error and cosine)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedOutput:
    """What both models put out for one document, float64, shape (rows, width) each."""

    base: Rows
    candidate: Rows


class DumpPair:
    """Two dumps whose documents were found to be the same.

    Attributes:
        documents: names of their folders, in order.
        logits: whether the model's output is one of classes, and no state.
        hidden: more points that both have, which are compared as states.
        labels: of each document, shape (rows,) or (1,); None where neither side has any.
        texts: what was said or written in each document; () likewise.
        inputs: digest of what each was given; "" where not both dumps keep it.
        digests: of the outputs that were read, of each side.
        vocabulary: names of the classes and the blank of CTC; None where there is none.

    Raises:
        UsageError: a folder or its config.yaml cannot be used; nobody says what the output is.
        MisalignedRunsError: the documents, their inputs, labels or points are not the same.
        EvaluationError: a file is damaged.
    """

    def __init__(self, base: Path, candidate: Path) -> None:
        self.paths = (base, candidate)
        self._dumps = (DumpedActivations(base), DumpedActivations(candidate))
        self._folders = (list_sequences(base), list_sequences(candidate))
        self._check_documents()
        self.documents = [folder.name for folder in self._folders[0]]
        self.inputs = self._agreed_inputs()
        self.labels = self._agreed("labels", self._read_labels)
        texts = self._agreed("texts", self._read_texts)
        self.texts: tuple[str, ...] = () if texts is None else tuple(texts)
        self.vocabulary = self._agreed_vocabulary()
        self.logits = self._is_logits()
        self.hidden = self._hidden_points()
        self._outputs = tuple(
            point_named(str(of.hyperparameters.get("point") or OUTPUT)) for of in self._dumps
        )
        self._check_points()
        self.digests = (hashlib.sha256(), hashlib.sha256())

    def read(self, point: str = "") -> Iterator[PairedOutput]:
        """Read a point of every document in turn; "": the model's output.

        Raises:
            MisalignedRunsError: the two have other shapes; at the end, where the inputs are not
                known, that documents of one are others of the other.
            EvaluationError: a tensor is damaged, empty, or holds no real numbers.
        """
        width, order = 0, DocumentOrder()
        for number, name in enumerate(self.documents):
            base, candidate = (
                self._rows(side, number, point or self._outputs[side]) for side in (0, 1)
            )
            if base.shape != candidate.shape:
                raise MisalignedRunsError(
                    f"document {name}: {point or 'the output'} is {_shape(base)} in "
                    f"{self.paths[0]} and {_shape(candidate)} in {self.paths[1]}",
                    hint="dump both without padding, and the same point of both",
                )
            width = width or base.shape[1]
            if base.shape[1] != width:
                raise EvaluationError(
                    f"{self.paths[0]}: {point or 'the output'} has a width of {width} in "
                    f"{self.documents[0]} and of {base.shape[1]} in {name}: its last axis is not "
                    "that of classes or channels",
                    hint="dump it as [rows, width], with the classes or channels last",
                )
            for digest, rows in zip(self.digests, (base, candidate), strict=True):
                digest.update(f"{point}{rows.shape}".encode() + rows.tobytes())
            order.add(base, candidate)
            yield PairedOutput(base=base, candidate=candidate)
        if not all(self.inputs):
            sides = str(self.paths[0]), str(self.paths[1])
            order.refuse_exchanged(self.documents, sides, _SAME_DOCUMENTS)

    def _rows(self, side: int, number: int, point: str) -> Rows:
        values = self._dumps[side].read(number, point)
        where = f"{self._folders[side][number]}: {point}, a tensor of {list(values.shape)},"
        if not np.issubdtype(values.dtype, np.floating):
            raise EvaluationError(
                f"{where} holds {values.dtype}: classes that were chosen already, or codes",
                hint="dump the numbers themselves, in a floating dtype",
            )
        if not values.size:
            raise EvaluationError(f"{where} is empty", hint="dump this document again")
        while values.ndim > 2 and values.shape[0] == 1:
            values = values[0]
        if self.logits and point in self._outputs and values.ndim > 2:
            raise EvaluationError(
                f"{where} is no output of one document: logits are [rows, classes] or [classes]",
                hint="one folder for each document, or output: hidden in config.yaml",
            )
        rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
        return np.ascontiguousarray(rows, dtype=np.float64)

    def _check_documents(self) -> None:
        names = [[folder.name for folder in of] for of in self._folders]
        if [len(of) for of in names] == [1, 1] or names[0] == names[1]:
            return
        alone = [sorted(set(names[side]) - set(names[1 - side])) for side in (0, 1)]
        only = [f"{name} is in {self.paths[side]} alone" for side in (0, 1) for name in alone[side]]
        raise MisalignedRunsError(
            f"{self.paths[0]} has {len(names[0])} documents and {self.paths[1]} {len(names[1])}: "
            + "; ".join(only[:4]),
            hint=_SAME_DOCUMENTS,
        )

    def _agreed_inputs(self) -> list[str]:
        whole = self._common_inputs(*self.paths, "the inputs beside the documents")
        pairs = zip(self.documents, *self._folders, strict=True)
        inputs = [
            self._common_inputs(base, candidate, f"document {name}: the inputs")
            for name, base, candidate in pairs
        ]
        if all(inputs) or not whole:
            return inputs if all(inputs) else [""] * len(inputs)
        return [f"{whole} {name}" for name in self.documents]

    def _common_inputs(self, base: Path, candidate: Path, what: str) -> str:
        """Digest of the inputs that both keep under one name; "" where there are none."""
        ours, theirs = (
            {name: _digest(values) for name, values in read_recorded_inputs(of).items()}
            for of in (base, candidate)
        )
        names = sorted(ours.keys() & theirs.keys())
        for name in names:
            if ours[name] != theirs[name]:
                raise self._differing(f"{what} ({name})", _SAME_DOCUMENTS)
        return " ".join(ours[key] for key in names)

    def _agreed(self, what: str, read: Callable[[int], list[Any] | None]) -> list[Any] | None:
        """What either side has of all documents; where both do, they have to agree."""
        base, candidate = read(0), read(1)
        if base is None or candidate is None:
            return candidate if base is None else base
        for name, ours, theirs in zip(self.documents, base, candidate, strict=True):
            if not np.array_equal(ours, theirs):
                raise self._differing(f"document {name}: the {what}", _IN_ONE)
        return base

    def _read_labels(self, side: int) -> list[Labels] | None:
        dump, labels = self._dumps[side], []
        for number, folder in enumerate(self._folders[side]):
            if LABELS not in dump.names(number):
                continue
            values = dump.read(number, LABELS)
            if not np.issubdtype(values.dtype, np.integer):
                raise EvaluationError(
                    f"{folder}: labels hold {values.dtype}",
                    hint="labels are numbers of classes; a text stands in text.txt",
                )
            labels.append(np.ravel(values).astype(np.int64))
        return self._of_all(labels, side, "labels")

    def _read_texts(self, side: int) -> list[str] | None:
        files = [folder / TEXT for folder in self._folders[side]]
        try:
            texts = [file.read_text(encoding="utf-8").strip() for file in files if file.is_file()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"a {TEXT} in {self.paths[side]} cannot be read: {error}") from error
        return self._of_all(texts, side, TEXT)

    def _of_all(self, found: list[Any], side: int, what: str) -> list[Any] | None:
        if not found:
            return None
        if len(found) < len(self.documents):
            raise UsageError(
                f"{self.paths[side]} has {what} of {len(found)} of {len(self.documents)} documents",
                hint="give every document its own, or none",
            )
        return found

    def _setting(self, key: str) -> Any:
        """What either config.yaml says; None where neither does."""
        values = [of.hyperparameters.get(key) for of in self._dumps]
        base, candidate = values
        if base is not None and candidate is not None and base != candidate:
            raise UsageError(
                f"{key} is {base!r} in {self.paths[0]} and {candidate!r} in {self.paths[1]}",
                hint="correct one of the two config.yaml",
            )
        return candidate if base is None else base

    def _agreed_vocabulary(self) -> Vocabulary | None:
        given, blank = self._setting("vocabulary"), self._setting("blank")
        vocabularies = [
            vocabulary
            for path in self.paths
            if (vocabulary := read_vocabulary(path, given, blank)) is not None
        ]
        if vocabularies and vocabularies[0] != vocabularies[-1]:
            raise self._differing("the names of the classes", _IN_ONE)
        if self.texts and not vocabularies:
            raise UsageError(
                f"{TEXT} lies in the documents, and no names of the classes to read a text with",
                hint="lay the tokenizer's vocab.json into the dump's folder, or write vocabulary: "
                "[...] and blank: into its config.yaml; remove the texts to do without",
            )
        return vocabularies[0] if vocabularies else None

    def _is_logits(self) -> bool:
        kind = self._setting("output")
        if kind not in (None, "logits", "hidden"):
            raise UsageError(f"output: {kind!r} is neither logits nor hidden", hint=_SAY_WHAT)
        of_classes = self.labels is not None or self.vocabulary is not None
        if kind is None and not of_classes:
            raise UsageError(
                f"nobody says what the outputs in {self.paths[0]} are, logits or hidden states",
                hint=_SAY_WHAT,
            )
        if kind == "hidden" and of_classes:
            raise UsageError(
                "output: hidden stands in config.yaml, and labels or a vocabulary lie beside it: "
                "states have no classes",
                hint="remove one of the two",
            )
        return bool(kind != "hidden")

    def _hidden_points(self) -> tuple[str, ...]:
        hidden = self._setting("hidden") or []
        names: Sequence[Any] = hidden if isinstance(hidden, list) else [hidden]
        return tuple(dict.fromkeys(point_named(str(point)) for point in names))

    def _check_points(self) -> None:
        for side, dump in enumerate(self._dumps):
            for point in (self._outputs[side], *self.hidden):
                have = [point in dump.names(number) for number in range(len(dump))]
                if all(have):
                    continue
                first = have.index(False)
                folder = self._folders[side][first]
                there = [name for name in dump.names(first) if name != LABELS]
                raise self._missing(point, folder, there, some=any(have))

    def _missing(
        self, point: str, folder: Path, there: Sequence[str], *, some: bool
    ) -> UsageError | MisalignedRunsError:
        shown = ", ".join(there[:4]) + (" ..." if len(there) > 4 else "") or "nothing"
        text = f"{folder} has no {point}: it has {shown}"
        if some:
            return MisalignedRunsError(text, hint="dump this document again")
        if point in self.hidden or not there:
            return UsageError(text, hint="dump it, or take it out of config.yaml (point, hidden)")
        return UsageError(
            text, hint=f"say in its config.yaml where the model's output is: point: {there[-1]}"
        )

    def _differing(self, what: str, hint: str) -> MisalignedRunsError:
        base, candidate = self.paths
        return MisalignedRunsError(f"{what} in {candidate} are not those in {base}", hint=hint)


def _digest(values: NDArray[Any]) -> str:
    """Of an input's numbers and shape, whatever width they are stored in; axes of one aside."""
    exact = np.asarray(
        values, dtype=np.float64 if np.issubdtype(values.dtype, np.floating) else np.int64
    )
    shape = [size for size in exact.shape if size != 1]
    return hashlib.sha256(f"{exact.dtype}{shape}".encode() + exact.tobytes()).hexdigest()


def _shape(rows: Rows) -> str:
    return f"{rows.shape[0]:,} x {rows.shape[1]:,}"
