"""``dump``: a model's activations written to a folder, as a port of it is to dump them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import evalguard
from evalguard.comparison.needed_guards import find_guards
from evalguard.comparison.typed_command import option_words
from evalguard.config.options import CompareOptions, make_options
from evalguard.core.redaction import redacted_command
from evalguard.core.trace_points import OUTPUT, ModelInputs, RecordedActivations
from evalguard.engine.choices import with_workers
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.foreign_code import has_own_process
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.page.progress import ProgressLine
from evalguard.run_token import run_scope
from evalguard.store.atomic_files import disk_error
from evalguard.store.cache_folder import open_cache_dir
from evalguard.tensor_files.activation_dumps import INPUTS_FILE, list_sequence_tensors
from evalguard.tracing.both_sides import (
    RecordedAlone,
    TraceRequest,
    complete_request,
    record_alone,
    report_to,
    resolve_named_side,
)
from evalguard.tracing.name_proposals import NamedTensor, ProposedRule, propose_rules
from evalguard.tracing.traced_documents import DocumentChoice
from evalguard.tracing.traced_sides import is_torch_here, refuse_untraceable

_NOTHING_KEPT = "nothing was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What was written.

    Attributes:
        documents: their names. points: of the first one, in the order of the computation.
        bytes: of all files, each counted once.
        proposed: rules for the tensors of a port's dump; None where none was given.
        following: the command that compares that dump; "" likewise.
    """

    folder: Path
    model: str
    documents: tuple[str, ...]
    points: tuple[str, ...]
    bytes: int
    proposed: tuple[ProposedRule, ...] | None = None
    following: str = ""


@run_scope()
def dump(
    base: str | Path,
    folder: str | Path,
    options: CompareOptions | None = None,
    *,
    documents: Sequence[int] = (),
    text: Sequence[str | Path] = (),
    inputs: Sequence[str | Path] = (),
    points: Sequence[str] = (),
    port: str | Path | None = None,
    **given: Any,
) -> Dump:
    """Write what flows in a model while it reads documents, for whoever ports it.

    One folder a document: a ``.npy`` file for every point, in the base's names, and
    ``inputs.npz``, what the model read. ``points.tsv`` beside them lists the points in the order
    of the computation, ``config.yaml`` says in which precision they were computed, and whether the
    output is one of classes.

    Args:
        base: the model, as ``evalguard.trace`` takes a base.
        folder: where to; it must not exist, or be empty.
        options, given: as for ``evalguard.trace``. documents, text, inputs: likewise.
        points: patterns of the points to write, ``model.layers.*:out``; (): all. The output of the
            whole model is always written.
        port: a folder with a port's activations of the first document: ``names.yaml`` proposes
            which of its tensors is which point.

    Raises:
        UsageError: names, options or documents that cannot be used; a pattern that fits no point;
            a folder that holds something.
        EvaluationError: the model cannot be loaded, or fails.
        StoreError: the disk refuses; nothing is left.
        Interrupted: on Ctrl-C; nothing is left.
    """
    options = make_options(options, **given)
    target = Path(folder).expanduser()
    _check_target(target)
    choice = DocumentChoice.of(options.limit, documents=documents, text=text, inputs=inputs)
    with interruptible("reading what is to be recorded", hint=_NOTHING_KEPT):
        request = _resolve(str(base), options, choice, target)
        asked, options = options, with_workers(options, request.choices)
        theirs = None if port is None else _list_tensors(Path(port).expanduser())
    with interruptible("recording", hint=_NOTHING_KEPT), ExitStack() as stack:
        progress = stack.enter_context(ProgressLine(quiet=options.quiet))
        source = request.base
        alone = record_alone(
            source,
            request,
            options,
            open_cache_dir(options.cache_dir),
            report_to(progress, source.name),
            stack,
            apart=is_torch_here(source) and has_own_process(source.variant),
        )
        written = _write(target, alone, points, theirs)
    if port is None:
        return written
    return replace(written, following=_trace_command(str(base), target, str(port), asked))


def _check_target(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        what = "holds files" if folder.is_dir() else "is a file"
        raise UsageError(f"{folder} {what}", hint="name a folder that does not exist with -o")


def _resolve(
    model: str, options: CompareOptions, choice: DocumentChoice, target: Path
) -> TraceRequest:
    cwd = Path.cwd()
    guards, notes = find_guards((model,), options, cwd=cwd)
    named = resolve_named_side("base", model, guards, options, cwd, named_by="MODEL")
    source = refuse_untraceable(named, "MODEL")
    return complete_request(source, target, (guards, notes), options, choice)


def _list_tensors(folder: Path) -> list[NamedTensor]:
    """Tensors of a dump's first document, under their own names."""
    return [
        NamedTensor(tensor.name, tensor.shape, tensor.read)
        for tensor in list_sequence_tensors(folder)[0]
    ]


def _write(
    target: Path,
    alone: RecordedAlone,
    patterns: Sequence[str],
    port: Sequence[NamedTensor] | None,
) -> Dump:
    """Write a dump beside where it goes, and give it its name once it is whole."""
    recorded = alone.side.recorded
    assert recorded is not None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        own = f"{os.getpid()}-{secrets.token_hex(4)}"
        partial_folder = target.with_name(f".{target.name}.{own}.partial")
        partial_folder.mkdir()
        try:
            written = [
                _write_document(partial_folder / f"{number:03}", recorded, number, patterns, inputs)
                for number, inputs in enumerate(alone.sequences.inputs)
            ]
            points = written[0].points
            _write_facts(partial_folder, alone, recorded, points)
            proposed = None
            if port is not None:
                proposed = propose_rules(_list_points(recorded), port)
                (partial_folder / "names.yaml").write_text(_map_text(proposed), encoding="utf-8")
            partial_folder.rename(target)
        except BaseException:
            shutil.rmtree(partial_folder, ignore_errors=True)
            raise
    except OSError as error:
        raise disk_error(
            "write", target, error, hint="name another folder with -o, or fewer --points"
        ) from error
    return Dump(
        folder=target,
        model=alone.side.name,
        documents=tuple(document.name for document in alone.sequences.documents),
        points=tuple(points),
        bytes=sum(tensor.bytes for tensor in written),
        proposed=proposed,
    )


def _choose_points(names: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Points that a pattern fits, in their order, and the output of the whole model.

    Raises:
        UsageError: a pattern fits none.
    """
    if not patterns:
        return tuple(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"--points '{pattern}' fits no point{nearest(pattern, names)}",
                hint=f"points are MODULE:in and MODULE:out, as {', '.join(names[1:4])}",
            )
    return tuple(
        name
        for name in names
        if name == OUTPUT or any(fnmatchcase(name, pattern) for pattern in patterns)
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """A document's files. ``points``: shape and dtype of each."""

    points: Mapping[str, str]
    bytes: int


def _write_document(
    folder: Path,
    recorded: RecordedActivations,
    number: int,
    patterns: Sequence[str],
    inputs: ModelInputs,
) -> _Written:
    """Write one document; what is one tensor under several names takes room once."""
    folder.mkdir()
    arrays: dict[str, Any] = dict(inputs)
    np.savez(folder / INPUTS_FILE, **arrays)
    first: dict[tuple[Any, ...], Path] = {}
    points, size = {}, 0
    for name in _choose_points(recorded.names(number), patterns):
        if "/" in name:
            raise EvaluationError(f"{name} cannot be the name of a file")
        values, file = recorded.read(number, name), folder / f"{name}.npy"
        points[name] = f"{list(values.shape)}\t{values.dtype}"
        same = (values.shape, values.dtype.str, blake2b(values.tobytes()).digest())
        if same in first and _link(first[same], file):
            continue
        np.save(file, values, allow_pickle=False)
        first.setdefault(same, file)
        size += file.stat().st_size
    return _Written(points, size)


def _link(first: Path, file: Path) -> bool:
    try:
        os.link(first, file)
    except OSError:  # a file system without links
        return False
    return True


def _write_facts(
    folder: Path,
    alone: RecordedAlone,
    recorded: RecordedActivations,
    points: Mapping[str, str],
) -> None:
    rounding = recorded.rounding
    fields = {
        "precision": rounding.precision,
        "computes_in": rounding.computes_in,
        "output": _kind_of_output(alone.classes),
    }
    facts = yaml.safe_dump({name: value for name, value in fields.items() if value})
    header = f"# {alone.side.name} {alone.side.identity.digest}, evalguard {evalguard.__version__}"
    text = facts if facts.strip() != "{}" else ""
    (folder / "config.yaml").write_text(f"{_one_line(header)}\n{text}", encoding="utf-8")
    rows = [
        "point\tshape\tdtype",
        *(f"{name}\t{description}" for name, description in points.items()),
    ]
    (folder / "points.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


# Heads whose output is a distribution over classes, by the end of a class of transformers.
_OF_CLASSES = re.compile(
    r".*For(CTC|CausalLM|MaskedLM|ConditionalGeneration|"
    r"(Sequence|Token|Image|Audio|Video|AudioFrame)Classification)|.*LMHeadModel"
)


def _kind_of_output(classes: Sequence[str]) -> str:
    """What ``compare`` is to take the model's output for; "" where its class does not say."""
    name = next(iter(classes), "")
    return "logits" if _OF_CLASSES.fullmatch(name) else "hidden" if name.endswith("Model") else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _list_points(recorded: RecordedActivations) -> list[NamedTensor]:
    return [
        NamedTensor(name, recorded.read(0, name).shape, partial(recorded.read, 0, name))
        for name in recorded.names(0)
    ]


def _map_text(proposed: Sequence[ProposedRule]) -> str:
    """A name map as YAML; what was not found stands in comments, to be decided by a person."""
    lines = [
        "# Proposed from values and shapes: read it before evalguard trace --map takes it.",
        "map:" if any(rule.rule for rule in proposed) else "map: []",
    ]
    for proposal in proposed:
        if proposal.rule is not None:
            lines.append(f"  - {_rule_text(proposal)}  # {_reason(proposal)}")
    for proposal in proposed:
        if proposal.rule is None:
            which = ", ".join(proposal.alternatives)
            maybe = f"may be {which}" if which else "like no point: ignore it, or write its rule"
            lines.append(
                f"# {_quoted(proposal.cand)}: {_count(proposal)} of {list(proposal.shape)}, {maybe}"
            )
    return "\n".join(lines) + "\n"


def _rule_text(one: ProposedRule) -> str:
    assert one.rule is not None
    parts: dict[str, Any] = {"base": one.rule.base, "cand": one.rule.cand}
    if one.rule.layout.reshape:
        parts["reshape"] = list(one.rule.layout.reshape)
    if one.rule.layout.transpose:
        parts["transpose"] = list(one.rule.layout.transpose)
    return _flow(parts)


def _flow(value: Mapping[str, Any] | str) -> str:
    """A value as YAML on one line."""
    return (
        yaml.safe_dump(
            value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True
        )
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def _quoted(name: str) -> str:
    return _one_line(_flow(name))


def _reason(one: ProposedRule) -> str:
    by = "by shape alone: check it" if one.error is None else f"differs by {one.error:.1e}"
    return f"{_count(one)}, {by}"


def _count(one: ProposedRule) -> str:
    return f"{one.count} tensor{'' if one.count == 1 else 's'}"


def render_dump(found: Dump) -> Iterator[str]:
    """Lines that say what was written, and what to do next."""
    documents = len(found.documents)
    yield (
        f"{found.folder}: {len(found.points):,} points of {documents} document"
        f"{'' if documents == 1 else 's'} of {found.model}, {found.bytes / 2**20:,.1f} MiB"
    )
    yield f"points.tsv lists them in the order of the computation; {INPUTS_FILE} is what was read"
    if found.proposed is None:
        return
    ruled = sum(proposal.rule is not None for proposal in found.proposed)
    by_shape = sum(
        proposal.rule is not None and proposal.error is None for proposal in found.proposed
    )
    doubtful = f", {by_shape} of them by shape alone" if by_shape else ""
    yield (
        f"names.yaml: rules for {ruled} of {len(found.proposed)} kinds of tensors{doubtful}; the "
        "others stand in comments"
    )
    yield f"Next: {found.following}"


# Options that a trace of the same model takes too.
_OF_TRACE = frozenset(
    {
        "config", "model", "base_model_args", "base_set", "trust_remote_code", "allow_code",
        "device", "threads", "cache_dir",
    }
)  # fmt: skip


def _trace_command(base: str, target: Path, port: str, options: CompareOptions) -> str:
    """The command that compares a port's dump with the model, by the map that was proposed."""
    names = str(target / "names.yaml")
    words = ["--base", base, "--cand", port, "--map", names, "--inputs", str(target)]
    return redacted_command(["evalguard", "trace", *words, *option_words(options, _OF_TRACE)])
