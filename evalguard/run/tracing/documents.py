"""Which sequences a trace reads: those that moved most, those that are named, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.run_documents import RunDocuments, Side
from evalguard.core.scorer import Request, RequestKind
from evalguard.core.tracing.points import ModelInputs
from evalguard.errors import EvalguardError, StoreError, UsageError
from evalguard.harness.requests import RenderChat, TaskRequests
from evalguard.harness.surroundings import TaskOptions
from evalguard.harness.tasks import load_tasks
from evalguard.regular_file import check_regular, open_regular, read_regular_text
from evalguard.report.words.labels import decisive_comparison
from evalguard.run.loading.task_code import note_task_code
from evalguard.run.stored_run import StoredRun, read_stored_run

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
        inputs: files of arrays by input name; see ``read_inputs``.
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
        RequestedSequence(name=path.name, request=_request("", 0, 0, [_read_text(path)]))
        for path in choice.texts
    ]
    for path in choice.inputs:
        for number, inputs in enumerate(read_inputs(path)):
            found.append(RequestedSequence(name=f"{path.name} {number}", inputs=inputs))
    return found[: choice.limit]


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


# Documents of the last comparison of the same two models.


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedDocuments:
    """Where documents came from: ``chosen`` says which, in words; ``run`` is the run folder."""

    sequences: tuple[RequestedSequence, ...]
    chosen: str
    run: Path | None = None
    task: str = ""


def find_last_comparison(
    root: Path, base: str, candidate: str, tasks: Sequence[str] = ()
) -> StoredRun | None:
    """Return the newest comparison of two models that lies below a folder, with its documents.

    Args:
        tasks: of which it must have one; () for any.
    """
    try:
        folders = sorted((one for one in root.iterdir() if one.is_dir()), reverse=True)
    except OSError:
        return None
    for folder in folders:
        if folder.name.startswith(".") or not (folder / "result.json").is_file():
            continue
        try:
            run = read_stored_run(folder)
        except EvalguardError:
            continue  # damaged, or of another kind: an older one will do
        names = (run.report.base.name, run.report.candidate.name)
        wanted = not tasks or set(tasks) & set(run.tasks)
        if names == (base, candidate) and run.tasks and wanted:
            return run
    return None


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
    kept = tuple(one for one in moved if one is not None)[: choice.limit]
    if not kept:
        return None
    what = "named" if choice.ids else "that moved most"
    metric = f" on {about.metric}" if about is not None and about.task == task else ""
    chosen = f"{len(kept)} of {task} {what}{'' if choice.ids else metric} in {run.folder}"
    return MovedDocuments(sequences=kept, chosen=chosen, run=run.folder, task=task)


def _rows_of(documents: RunDocuments, ids: Sequence[int]) -> list[int]:
    places = {doc_id: row for row, doc_id in enumerate(documents.doc_ids)}
    missing = [one for one in ids if one not in places]
    if missing:
        raise UsageError(
            f"--documents {missing[0]}: the last comparison scored no such document of "
            f"{documents.task}",
            hint=f"it scored {len(places)}, from {min(places)} to {max(places)}",
        )
    return [places[one] for one in ids]


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
        abs(one - other) if one is not None and other is not None else 0.0
        for one, other in zip(*sides, strict=True)
    ]
    return [one if isfinite(one) else 0.0 for one in apart]


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
    request = _request(documents.task, doc_id, at, arguments)
    return RequestedSequence(name=name, request=request, drift=drift)


def _request(task: str, doc_id: int, index: int, arguments: list[Any]) -> Request:
    kind: RequestKind = "loglikelihood"
    if not task or (len(arguments) == 2 and isinstance(arguments[1], Mapping)):
        kind = "generate_until"
    elif len(arguments) == 1:
        kind = "loglikelihood_rolling"
    given = (*arguments, {}) if kind == "generate_until" and len(arguments) == 1 else arguments
    return Request(task=task, doc_id=doc_id, index=index, kind=kind, arguments=tuple(given))


# Documents of a task that no comparison of these models has scored.


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
    missing = [one for one in ids if one not in requests.doc_ids]
    if missing:
        raise UsageError(
            f"--documents {missing[0]}: task {name} has no such document",
            hint=f"it has {requests.n_total}, from 0 to {requests.n_total - 1}",
        )
    first: dict[int, RequestedSequence] = {}
    for one in _named_requests(requests):
        assert one.request is not None
        first.setdefault(one.request.doc_id, one)
    kept = tuple(first[one] for one in ids[: choice.limit])
    which = f"{len(kept)} of {name}" + (" named" if choice.ids else ", its first ones")
    return MovedDocuments(sequences=kept, chosen=which, task=name)


def _least_limit(choice: DocumentChoice) -> float:
    return max((*choice.ids, choice.limit - 1)) + 1


def _named_requests(requests: TaskRequests) -> Iterator[RequestedSequence]:
    for request in requests.requests:
        yield RequestedSequence(name=f"{request.task} {request.doc_id}", request=request)
