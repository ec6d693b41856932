"""Which sequences a trace reads: those that moved most, those that are named, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.comparison.stored_run import StoredRun, read_stored_run
from evalguard.core.compare_report import RunDocuments, Side
from evalguard.core.findings import quote_ids
from evalguard.core.scorer import Request, RequestKind
from evalguard.core.trace_points import ModelInputs
from evalguard.engine.loading.foreign_code import note_task_code
from evalguard.errors import (
    EvalguardError,
    LaterVersionError,
    MisalignedRunsError,
    StoreError,
    UsageError,
)
from evalguard.harness.requests import RenderChat, TaskRequests
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks
from evalguard.regular_file import check_regular, open_regular, read_regular_text
from evalguard.report.metric_labels import decisive_comparison
from evalguard.store.run_folder import LATER_HINT
from evalguard.tensor_files.activation_dumps import INPUTS_FILE, list_sequences
from evalguard.tracing.trace_report import TracedDocument
from evalguard.tracing.traced_sides import TracedSide

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
            texts=tuple(Path(path) for path in text),
            inputs=tuple(Path(path) for path in inputs),
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
    requested = [
        RequestedSequence(name=path.name, request=sequence_of_row("", 0, 0, [_read_text(path)]))
        for path in choice.texts
    ]
    for path in _list_input_files(choice.inputs):
        name = path.parent.name if path.name == INPUTS_FILE else path.name
        for number, inputs in enumerate(read_inputs(path)):
            requested.append(RequestedSequence(name=f"{name} {number}", inputs=inputs))
    return requested[: choice.limit]


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
    files = (
        [sequence / INPUTS_FILE for sequence in list_sequences(folder)] if folder.is_dir() else []
    )
    return tuple(files) if all(file.is_file() for file in files) else ()


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
    whole = {name: array[None] if array.ndim == 1 else array for name, array in arrays.items()}
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in whole.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise UsageError(
            f"--inputs {path}: the arrays have different numbers of sequences: {counts}",
            hint="the first axis counts sequences: input_ids [2, 30], attention_mask [2, 30]",
        )
    sequences = next(iter(counts.values()))
    return [
        {name: np.ascontiguousarray(array[at : at + 1]) for name, array in whole.items()}
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
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
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
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(
            f"--inputs: '{name}' holds lists of different lengths", hint="one file a sequence"
        ) from error
    if array.dtype == object or array.dtype.kind not in "iufb":
        raise UsageError(f"--inputs: '{name}' holds no numbers")
    return array


def sequence_of_row(task: str, doc_id: int, index: int, arguments: list[Any]) -> Request:
    kind: RequestKind = "loglikelihood"
    if not task or (len(arguments) == 2 and isinstance(arguments[1], Mapping)):
        kind = "generate_until"
    elif len(arguments) == 1:
        kind = "loglikelihood_rolling"
    given = (*arguments, {}) if kind == "generate_until" and len(arguments) == 1 else arguments
    return Request(task=task, doc_id=doc_id, index=index, kind=kind, arguments=tuple(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedDocuments:
    """Where documents came from: ``chosen`` says which, in words.

    Attributes:
        run: the run folder of the comparison that they are of.
        base_digest: of its base, which a trace may load only after its documents are chosen.
    """

    sequences: tuple[RequestedSequence, ...]
    chosen: str
    run: Path | None = None
    base_digest: str = ""


def find_comparisons(
    root: Path,
    base: str,
    candidate: str,
    tasks: Sequence[str] = (),
    *,
    note: Callable[[str], None],
) -> Iterator[StoredRun]:
    """Yield comparisons of two names that lie below a folder with their documents, newest first.

    One name may have been given to several models: ``RunIdentity.digest`` tells them apart.

    Args:
        tasks: of which it must have one; () for any.
        note: takes which comparisons are left out, and why.
    """
    try:
        folders = sorted((entry for entry in root.iterdir() if entry.is_dir()), reverse=True)
    except OSError:
        return
    for folder in folders:
        if folder.name.startswith(".") or not (folder / "result.json").is_file():
            continue
        try:
            run = read_stored_run(folder)
        except LaterVersionError:
            note(f"{folder / 'result.json'} is left out: {LATER_HINT}")
            continue
        except EvalguardError:
            continue  # damaged, or of another kind: an older one will do
        names = (run.report.base.name, run.report.candidate.name)
        wanted = not tasks or set(tasks) & set(run.tasks)
        if names == (base, candidate) and run.tasks and wanted:
            yield run


def choose_moved(
    run: StoredRun, choice: DocumentChoice, tasks: Sequence[str] = ()
) -> MovedDocuments | None:
    """Return the documents that moved most in a comparison, or those that are named.

    By what they add to the drift of the metric that the comparison is about; where that is no sum
    over documents or leaves ties, by how far their log-likelihoods are apart.

    Raises:
        UsageError: a document that was not scored.
        StoreError: the run folder is damaged.
    """
    about = decisive_comparison(run.report)
    allowed = [task for task in run.tasks if not tasks or task in tasks]
    task = about.task if about is not None and about.task in allowed else (allowed or [""])[0]
    documents = run.documents(task) if task else None
    if documents is None or not len(documents):
        return None
    drifts: Sequence[float | None] = (None,) * len(documents)
    if about is not None and about.task == task:
        drifts = documents.drifts(about.filter, about.metric) or drifts
    if choice.ids:
        rows = _rows_of(documents, choice.ids)
    else:
        every = range(len(documents))
        rows = sorted(every, key=lambda row: _movement(documents, row, drifts[row]))
    moved = [_requested_row(documents, row, drifts[row]) for row in rows]
    sequences = tuple(sequence for sequence in moved if sequence is not None)[: choice.limit]
    if not sequences:
        return None
    what = "named" if choice.ids else "that moved most"
    metric = f" on {about.metric}" if about is not None and about.task == task else ""
    chosen = f"{len(sequences)} of {task} {what}{'' if choice.ids else metric} in {run.folder}"
    digest = run.report.base.digest
    return MovedDocuments(sequences=sequences, chosen=chosen, run=run.folder, base_digest=digest)


def _rows_of(documents: RunDocuments, ids: Sequence[int]) -> list[int]:
    places = {doc_id: row for row, doc_id in enumerate(documents.doc_ids)}
    missing = [doc_id for doc_id in ids if doc_id not in places]
    if missing:
        raise UsageError(
            f"--documents {missing[0]}: the last comparison scored no such document of "
            f"{documents.task}",
            hint=f"it scored {len(places)}, from {min(places)} to {max(places)}",
        )
    return [places[doc_id] for doc_id in ids]


def _movement(documents: RunDocuments, row: int, drift: float | None) -> tuple[float, float]:
    """A key by which what moved most comes first."""
    known = drift is not None and isfinite(drift)
    return -abs(drift) if known and drift is not None else 0.0, -sum(_moves(documents, row))


def _moves(documents: RunDocuments, row: int) -> list[float]:
    """How far the log-likelihoods of each request are apart; nothing where a side has none."""
    sides = [documents.of(side, "loglikelihood")[row] for side in get_args(Side)]
    if not all(isinstance(side, list) for side in sides) or len(sides[0]) != len(sides[1]):
        return []
    apart = [
        abs(base - candidate) if base is not None and candidate is not None else 0.0
        for base, candidate in zip(*sides, strict=True)
    ]
    return [change if isfinite(change) else 0.0 for change in apart]


def _requested_row(
    documents: RunDocuments, row: int, drift: float | None
) -> RequestedSequence | None:
    """The request of a document that moved most; None where the run does not hold its texts."""
    texts = documents.of("base", "arguments")[row]
    if not texts:
        return None
    moves = _moves(documents, row)
    at = int(np.argmax(moves)) if moves else 0
    try:
        arguments = json.loads(texts[at])
    except (ValueError, TypeError, IndexError) as error:
        raise StoreError(
            f"the samples of task '{documents.task}' are damaged: arguments that are none",
            hint="compare again",
        ) from error
    if arguments and arguments[0] is None:
        arguments[0] = documents.of("base", "prompt")[row]
    doc_id = documents.doc_ids[row]
    name = f"{documents.task} {doc_id}" + (f", request {at}" if len(texts) > 1 else "")
    request = sequence_of_row(documents.task, doc_id, at, arguments)
    return RequestedSequence(name=name, request=request, drift=drift)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSequences:
    """Inputs of both models, the documents that they stand for, and what is to be said."""

    inputs: tuple[ModelInputs, ...]
    documents: tuple[TracedDocument, ...]
    notes: tuple[str, ...] = ()


def encode_sequences(
    requested: Sequence[RequestedSequence], base: TracedSide, candidate: TracedSide
) -> EncodedSequences:
    """Encode sequences with the base's tokenizer, and see that the candidate reads the same ids.

    Raises:
        UsageError: a text of no tokens, one that is longer than a model reads, or one for a model
            that reads none.
        MisalignedRunsError: the candidate reads other token ids.
    """
    if any(sequence.inputs is None for sequence in requested):
        _check_vocabularies(base, candidate)
    inputs: list[ModelInputs] = []
    documents: list[TracedDocument] = []
    cut = 0
    for sequence in requested:
        encoded, was_cut = _encode_one(sequence, base, candidate)
        cut += was_cut
        request = sequence.request
        inputs.append(encoded)
        documents.append(
            TracedDocument(
                name=sequence.name,
                tokens=count_positions(encoded),
                task="" if request is None else request.task,
                doc_id=request.doc_id if request is not None and request.task else None,
                request=request.index if request is not None and request.task else None,
                drift=sequence.drift,
                token_texts=base.token_texts(encoded),
            )
        )
    notes: tuple[str, ...] = ()
    if cut:
        plural = "documents are" if cut > 1 else "document is"
        notes = (f"{cut} {plural} cut to the model's context of {base.max_length:,} tokens",)
    return EncodedSequences(inputs=tuple(inputs), documents=tuple(documents), notes=notes)


def _check_vocabularies(base: TracedSide, candidate: TracedSide) -> None:
    digests = {base.vocabulary, candidate.vocabulary} - {""}
    if len(digests) > 1:
        raise MisalignedRunsError(
            f"{base.name} and {candidate.name} have different vocabularies: one token id means "
            "different texts to the two",
            of_tokens=True,
            hint="trace a model with its own port; --inputs gives token ids that both are meant to "
            "read",
        )


def check_same_inputs(
    read: EncodedSequences, other: EncodedSequences, base: str, candidate: str
) -> None:
    """Refuse sequences that the two models, loaded in turn, encode in two ways.

    Raises:
        MisalignedRunsError: naming the first.
    """
    pairs = zip(read.inputs, other.inputs, strict=True)
    for document, (base_inputs, candidate_inputs) in zip(other.documents, pairs, strict=True):
        same = base_inputs.keys() == candidate_inputs.keys() and all(
            np.array_equal(base_inputs[n], candidate_inputs[n]) for n in base_inputs
        )
        if not same:
            raise MisalignedRunsError(
                f"{candidate} reads other token ids of {document.name} than {base}",
                of_tokens=True,
                hint="a trace compares the models, not their tokenizers: --inputs gives both the "
                "same ids",
            )


def count_positions(inputs: ModelInputs) -> int:
    """Positions of a sequence: the longest second axis of its inputs."""
    return max((int(array.shape[1]) for array in inputs.values() if array.ndim > 1), default=1)


def _encode_one(
    one: RequestedSequence, base: TracedSide, candidate: TracedSide
) -> tuple[ModelInputs, bool]:
    if one.inputs is not None:
        _check_inputs(one, base)
        return one.inputs, False
    assert one.request is not None
    if base.encode is None:
        raise UsageError(
            f"{base.name} has no tokenizer, so it reads no text",
            hint="--inputs FILE.npz gives its inputs by name, e.g. input_values",
        )
    encoded, was_cut = base.encode(one.request)
    ids = encoded["input_ids"]
    if not ids.size:
        raise UsageError(f"{one.name}: the text has no tokens", hint="give a longer text")
    longest = min((side.max_length for side in (base, candidate) if side.max_length), default=0)
    if longest and ids.shape[1] > longest:
        raise UsageError(
            f"{one.name} has {ids.shape[1]:,} tokens, and the models read {longest:,}",
            hint="cut the text, or give its parts as files of their own",
        )
    if candidate.encode is not None:
        candidate_inputs, _ = candidate.encode(one.request)
        _check_same_ids(one, base, candidate, ids, candidate_inputs["input_ids"])
    return encoded, was_cut


def _check_same_ids(
    one: RequestedSequence, base: TracedSide, candidate: TracedSide, ids: Any, other: Any
) -> None:
    if ids.shape == other.shape and bool(np.all(ids == other)):
        return
    first, second = np.ravel(ids).tolist(), np.ravel(other).tolist()
    at = next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
    raise MisalignedRunsError(
        f"{candidate.name} reads other token ids of {one.name} than {base.name}: from position "
        f"{at} on ({len(second)} and {len(first)} tokens)",
        of_tokens=True,
        quotes=(
            *quote_ids(first[at:], side="base"),
            *quote_ids(second[at:], side="candidate"),
        ),
        hint="a trace compares the models, not their tokenizers: --inputs gives both the same ids",
    )


def _check_inputs(one: RequestedSequence, base: TracedSide) -> None:
    """Refuse token ids that the base does not know, which would fail deep in the model."""
    assert one.inputs is not None
    ids = one.inputs.get("input_ids")
    embeddings = getattr(base.module, "get_input_embeddings", None)
    if ids is None or embeddings is None:
        return
    if ids.dtype.kind not in "iu":
        raise UsageError(f"{one.name}: input_ids are {ids.dtype}, not whole numbers")
    try:
        known = int(embeddings().num_embeddings)
    except (NotImplementedError, AttributeError):
        return
    if ids.size and (int(ids.max()) >= known or int(ids.min()) < 0):
        raise UsageError(
            f"{one.name}: token id {int(ids.max() if ids.max() >= known else ids.min())} is not "
            f"in the vocabulary of {known:,}"
        )


def choose_first(
    tasks: Sequence[str],
    options: TaskOptions,
    choice: DocumentChoice,
    *,
    render_chat: RenderChat | None,
) -> MovedDocuments:
    """Return the first documents of the first task, or those that are named.

    Raises:
        UsageError: a document that the task does not have.
        EvaluationError: the task cannot be loaded.
    """
    loaded = load_tasks(tasks[:1], options=replace(options, limit=_least_limit(choice)))
    note_task_code(loaded.executed)
    name = loaded.names[0]
    requests = loaded.requests(name, render_chat=render_chat)
    ids = choice.ids or requests.doc_ids[: choice.limit]
    missing = [doc_id for doc_id in ids if doc_id not in requests.doc_ids]
    if missing:
        raise UsageError(
            f"--documents {missing[0]}: task {name} has no such document",
            hint=f"it has {requests.n_total}, from 0 to {requests.n_total - 1}",
        )
    first: dict[int, RequestedSequence] = {}
    for sequence in _named_requests(requests):
        assert sequence.request is not None
        first.setdefault(sequence.request.doc_id, sequence)
    sequences = tuple(first[doc_id] for doc_id in ids[: choice.limit])
    which = f"{len(sequences)} of {name}" + (" named" if choice.ids else ", its first ones")
    return MovedDocuments(sequences=sequences, chosen=which)


def _least_limit(choice: DocumentChoice) -> float:
    return max((*choice.ids, choice.limit - 1)) + 1


def _named_requests(requests: TaskRequests) -> Iterator[RequestedSequence]:
    for request in requests.requests:
        yield RequestedSequence(name=f"{request.task} {request.doc_id}", request=request)
