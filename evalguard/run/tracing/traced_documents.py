"""Which sequences a trace reads: those that moved most, those that are named, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scorer import Request, RequestKind
from evalguard.core.tracing.points import ModelInputs
from evalguard.errors import UsageError
from evalguard.regular_file import check_regular, open_regular, read_regular_text
from evalguard.store.activation_dumps import INPUTS_FILE, list_sequences

DEFAULT_DOCUMENTS = 8
_INPUT_SUFFIXES = (".npz", ".safetensors", ".json")
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChoice:
    """What was asked for on the command line.

    Attributes:
        ids: documents of the task, by lm-eval's numbers; () for those that moved most.
        limit: how many documents at most.
        texts: files with the user's own documents, one each.
        inputs: files of arrays by input name (see ``read_inputs``), or dumps that have them.
    """

    ids: tuple[int, ...] = ()
    limit: int = DEFAULT_DOCUMENTS
    texts: tuple[Path, ...] = ()
    inputs: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be met together.

        Raises:
            UsageError: documents of a task beside the user's own, or no documents at all.
        """
        if self.limit < 1:
            raise UsageError(f"--limit {self.limit}: a trace reads at least one document")
        if self.ids and self.own:
            raise UsageError(
                "--documents names documents of a task, and --text or --inputs others",
                hint="leave out one of the two",
            )

    @classmethod
    def of(
        cls,
        limit: float | None,
        *,
        documents: Sequence[int],
        text: Sequence[str | Path],
        inputs: Sequence[str | Path],
    ) -> DocumentChoice:
        """Return what a command's options ask for.

        Raises:
            UsageError: a limit that is no whole number of documents; what cannot be met together.
        """
        if limit is not None and (limit < 1 or not float(limit).is_integer()):
            raise UsageError(
                f"--limit {limit:g}: a trace reads a whole number of documents", hint="--limit 8"
            )
        return cls(
            ids=tuple(documents),
            limit=DEFAULT_DOCUMENTS if limit is None else int(limit),
            texts=tuple(Path(one) for one in text),
            inputs=tuple(Path(one) for one in inputs),
        )

    @property
    def own(self) -> bool:
        """Whether the user brings the documents, so that no task is needed."""
        return bool(self.texts or self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSequence:
    """One sequence before it is encoded: a request of a task, a text, or arrays.

    ``request`` holds a text of the user's as one that is generated from: with the special tokens
    that the tokenizer puts around a text by itself.
    """

    name: str
    request: Request | None = None
    inputs: ModelInputs | None = None
    drift: float | None = None

    @property
    def own(self) -> bool:
        """Whether it is the user's, and no document of a task."""
        return self.request is None or not self.request.task


def read_own_documents(choice: DocumentChoice) -> list[RequestedSequence]:
    """Read the user's documents.

    Raises:
        UsageError: a file that cannot be read, holds no text, or no arrays.
    """
    found = [
        RequestedSequence(name=path.name, request=sequence_of_row("", 0, 0, [_read_text(path)]))
        for path in choice.texts
    ]
    for path in _list_input_files(choice.inputs):
        name = path.parent.name if path.name == INPUTS_FILE else path.name
        for number, inputs in enumerate(read_inputs(path)):
            found.append(RequestedSequence(name=f"{name} {number}", inputs=inputs))
    return found[: choice.limit]


def _list_input_files(given: Sequence[Path]) -> Iterator[Path]:
    """Files of inputs; in place of a dump those that its sequences were made of.

    Raises:
        UsageError: a folder is no dump, or does not say what it was made of.
    """
    for path in given:
        if not path.expanduser().is_dir():
            yield path
            continue
        recorded = list_recorded_inputs(path.expanduser())
        if not recorded:
            raise UsageError(
                f"--inputs {path}: not every sequence of this dump has {INPUTS_FILE}",
                hint="name the file with the inputs",
            )
        yield from recorded


def list_recorded_inputs(folder: Path) -> tuple[Path, ...]:
    """Files of what a dump's sequences were made of; () where any of them does not tell.

    Raises:
        UsageError: there is no such folder, or no dump in it.
    """
    files = [one / INPUTS_FILE for one in list_sequences(folder)] if folder.is_dir() else []
    return tuple(files) if all(one.is_file() for one in files) else ()


def _read_text(path: Path) -> str:
    try:
        with open_regular(path.expanduser()) as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"--text {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--text {path} is not UTF-8: {error.reason}") from error
    if len(data) > _MOST_BYTES or not text.strip():
        what = "is empty" if not text.strip() else f"is larger than {_MOST_BYTES // 2**20} MiB"
        raise UsageError(f"--text {path} {what}", hint="one document of some hundred words a file")
    return text.rstrip("\n")


def read_inputs(path: Path) -> list[ModelInputs]:
    """Read model inputs: arrays by name, the first axis counting sequences where there are several.

    An array of one axis is one sequence; ``.json`` holds lists of token ids by name.

    Raises:
        UsageError: the file cannot be read, or its arrays have different numbers of sequences.
    """
    arrays = _read_arrays(path.expanduser())
    if not arrays:
        raise UsageError(f"--inputs {path} holds no arrays", hint="{'input_ids': [[1, 2, 3]]}")
    whole = {name: one[None] if one.ndim == 1 else one for name, one in arrays.items()}
    counts = {name: one.shape[0] if one.ndim else 0 for name, one in whole.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise UsageError(
            f"--inputs {path}: the arrays have different numbers of sequences: {counts}",
            hint="the first axis counts sequences: input_ids [2, 30], attention_mask [2, 30]",
        )
    sequences = next(iter(counts.values()))
    return [
        {name: np.ascontiguousarray(one[at : at + 1]) for name, one in whole.items()}
        for at in range(sequences)
    ]


def _read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    suffix = path.suffix.lower()
    if suffix not in _INPUT_SUFFIXES:
        raise UsageError(
            f"--inputs {path}: the suffix {suffix!r} says no format",
            hint=f"one of {', '.join(_INPUT_SUFFIXES)}",
        )
    try:
        check_regular(path)
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
        if suffix == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        given = json.loads(read_regular_text(path))
        return {str(name): _as_array(name, value) for name, value in dict(given).items()}
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile and safetensors raise what they will
        raise UsageError(f"--inputs {path} cannot be read: {error}") from error


def _as_array(name: str, value: Any) -> NDArray[np.generic]:
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise UsageError(
            f"--inputs: '{name}' holds lists of different lengths", hint="one file a sequence"
        ) from error
    if found.dtype == object or found.dtype.kind not in "iufb":
        raise UsageError(f"--inputs: '{name}' holds no numbers")
    return found


def sequence_of_row(task: str, doc_id: int, index: int, arguments: list[Any]) -> Request:
    kind: RequestKind = "loglikelihood"
    if not task or (len(arguments) == 2 and isinstance(arguments[1], Mapping)):
        kind = "generate_until"
    elif len(arguments) == 1:
        kind = "loglikelihood_rolling"
    given = (*arguments, {}) if kind == "generate_until" and len(arguments) == 1 else arguments
    return Request(task=task, doc_id=doc_id, index=index, kind=kind, arguments=tuple(given))
