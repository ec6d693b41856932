"""The two sides of a comparison: what ``--base`` and ``--cand`` name.

A server that is named by its address alone is asked with the other side's tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.config.guard import Guard, GuardSet
from evalguard.config.inline_models import inline_variant, is_address, split_model_type
from evalguard.config.local_paths import resolve_model_args, resolve_path
from evalguard.config.options import CompareOptions
from evalguard.config.trust import require_code_allowed
from evalguard.core.compare_report import RunIdentity
from evalguard.core.document_columns import DocumentFields
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Assignment, Value, Variant
from evalguard.errors import UsageError, nearest
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun, is_lmeval_run, read_run
from evalguard.harness.finished_runs.other_harnesses import refuse_other_harness
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import find_model_type
from evalguard.models.unloaded_models import puts_bos_first
from evalguard.regular_file import is_special, open_regular
from evalguard.tensor_files.activation_dumps import is_dump


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that will be scored, and how: ``policy`` None is as was chosen for the run.

    ``guard`` is the guard file that names it, if one does. ``misspelt`` is a hint for a bare word
    that is in no guard file: it is taken for a hub id, and may be meant otherwise.
    """

    name: str
    variant: Variant
    guard: Guard | None = None
    misspelt: str = ""
    policy: ScoringPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """A finished lm-eval run; nothing is scored."""

    name: str
    run: LmEvalRun


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScores:
    """What a run folder or a history kept of a model that was scored then.

    Attributes:
        path: of the run folder or the history.
        created: when it was scored; UTC, ISO 8601.
        fields: of the documents by task; {} where they were not kept.
        rows: what was asked and answered, document by document, by task; {} where that was not
            kept (see ``harness.samples.sample``).
        environment: packages, machine and device that it was scored with.
    """

    path: Path
    created: str
    identity: RunIdentity
    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...] = ()
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    rows: Mapping[str, tuple[Mapping[str, Value], ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSource:
    """A base that evalguard scored before, and whose scores were kept; nothing is scored."""

    name: str
    run: BaselineScores


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSource:
    """A base whose answers and distributions a reference file keeps; it is not loaded.

    ``description`` is of the model that wrote it, ``tasks`` what it was asked.
    """

    name: str
    path: Path
    description: ModelDescription
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSource:
    """A folder of what a model put out for each document; the other side is one, too."""

    name: str
    path: Path


StoredSource = RunSource | BaselineSource
Source = ModelSource | StoredSource | ReferenceSource | DumpSource
_WHAT_TO_GIVE = (
    "give a model folder, a GGUF, a hub id, a server (http://HOST:PORT/v1), an lm-eval run, a "
    "folder of dumped outputs or a name in the guard file; TYPE:MODEL says the model type"
)
_COMPLETIONS = ("local-completions", "openai-completions")
_SET_OPTIONS = {"base": "--base-set", "cand": "--set"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """What the user said about one side.

    Attributes:
        named_by: the option or argument that named it, where that is not ``--base`` or ``--cand``.
    """

    role: str
    spec: str
    model_args: Mapping[str, Value]
    assignment: Assignment
    named_by: str = ""

    @property
    def option(self) -> str:
        """What named it on the command line."""
        return self.named_by or f"--{self.role}"


def resolve_side(side: SideSpec, guards: GuardSet, options: CompareOptions, *, cwd: Path) -> Source:
    """Find what a side names: a guard file's model, a finished run, a folder, or a hub id.

    Raises:
        UsageError: for a name that is none of these, with the nearest right name.
    """
    path = resolve_path(side.spec, cwd)
    if side.spec in guards.names and not is_user_folder(guards, path):
        guard, variant = guards.find(side.spec)
        require_code_allowed(guard, variant)
        variant = _with_command_line(variant, side, options, cwd)
        return ModelSource(name=side.spec, variant=variant, guard=guard)
    if not side.spec.strip():
        raise UsageError(f"{side.option} is empty", hint=_WHAT_TO_GIVE)
    if is_special(Path(path)):
        raise UsageError(f"{side.option} {side.spec} is not a regular file", hint=_WHAT_TO_GIVE)
    if os.path.exists(path) and is_lmeval_run(path):
        _check_has_model(side, "a finished lm-eval run", "run")
        return RunSource(name=_short_path(path), run=read_run(path, tasks=options.tasks or None))
    loads_gguf = "gguf_file" in side.model_args  # then arrays beside it are no dump
    if not loads_gguf and os.path.isdir(path) and is_dump(path):  # no text is too strange to ask
        _check_has_model(side, "a folder of dumped outputs", "dump")
        return DumpSource(name=_short_path(path), path=path)
    refuse_other_harness(Path(path))
    _refuse_logits_file(side, Path(path))
    named, spec = split_model_type(side.spec, cwd)
    if named:
        side, path = replace(side, spec=spec), resolve_path(spec, cwd)
    _check_spelling(side, guards, path)
    model = named or options.model
    # transformers reads a GGUF, too, where it is told to
    tells_own = model == "hf" and not named and "gguf_file" not in side.model_args
    variant = inline_variant(
        spec,
        model=find_model_type(path) if tells_own else model,
        model_args=dict(side.model_args),
        cwd=cwd,
        trust_remote_code=options.trust_remote_code,
        chat=bool(options.requests or options.apply_chat_template),
    )
    # a server's model has whatever name the server gives it
    of_a_file = variant.model in HF_TYPES and not os.path.exists(path)
    return ModelSource(
        name=variant.name,
        variant=_with_assignment(variant, side.assignment),
        misspelt=_spelling_hint(side, guards, path) if of_a_file else "",
    )


def _refuse_logits_file(side: SideSpec, path: Path) -> None:
    """Refuse what ``llama-perplexity --kl-divergence-base`` writes: it answers no task."""
    try:
        with open_regular(path) as file:
            beginning = file.read(8)
    except OSError:
        return
    if beginning == b"_logits_":
        raise UsageError(
            f"{side.option} {side.spec} is a logits file of llama.cpp, which answers no task",
            hint="name the GGUF that it was made with: it is asked here, and -v shows the figures "
            "that llama-perplexity prints",
        )


def refuse_lone_dump(base: Source, candidate: Source) -> None:
    """Refuse a dump beside anything else.

    Raises:
        UsageError: naming both, and what to do.
    """
    dumps = [source for source in (base, candidate) if isinstance(source, DumpSource)]
    if len(dumps) != 1:
        return
    peer = candidate if dumps[0] is base else base
    raise UsageError(
        f"{dumps[0].path} is a folder of dumped outputs, and {peer.name} is none: outputs are "
        "compared with outputs",
        hint=f"dump what {peer.name} puts out for the same inputs, and name both folders; to find "
        "the place of a fault: evalguard trace --base MODEL --cand FOLDER",
    )


def with_distinct_names(base: Source, candidate: Source) -> tuple[Source, Source]:
    """Return both sides under names that differ, for reports."""
    if base.name != candidate.name:
        return base, candidate
    return (
        replace(base, name=f"{base.name} (base)"),
        replace(candidate, name=f"{candidate.name} (candidate)"),
    )


def with_base_settings(base: Source, candidate: Source) -> Source:
    """Return a candidate whose settings start at the base's values, where the base has them too.

    Of two models in a chain, both have the settings that the second inherits: between the two they
    make no difference, and one that the second sets anew differs from the base's value.
    """
    if not (isinstance(base, ModelSource) and isinstance(candidate, ModelSource)):
        return candidate
    if replace(candidate.variant, name=base.variant.name) == base.variant:
        return candidate  # one model twice
    of_base = {
        (setting.name, setting.target): base.variant.assignment for setting in base.variant.settings
    }
    settings = tuple(
        replace(setting, reference=of_base[setting.name, setting.target][setting.name])
        if setting.name in of_base.get((setting.name, setting.target), {})
        else setting
        for setting in candidate.variant.settings
    )
    return replace(candidate, variant=replace(candidate.variant, settings=settings))


def with_tokens_of(other: Source, asked: Source) -> tuple[Source, str]:
    """Give a server that was named by its address alone the token ids of the other side.

    lm-eval's client of completions sends token ids: of a tokenizer that it would look for under the
    server's name of its model, and without BOS whatever the tokenizer does by itself.

    Returns:
        the second source, and what was set; "" where nothing is.

    Raises:
        EvaluationError: the other side's tokenizer cannot be loaded.
    """
    if not (isinstance(asked, ModelSource) and isinstance(other, ModelSource)):
        return asked, ""
    ours, theirs = asked.variant.model_args, other.variant.model_args
    of_completions = asked.guard is None and asked.variant.model in _COMPLETIONS
    source = theirs.get("tokenizer") or theirs.get("pretrained")
    readable = other.variant.model in HF_TYPES and other.variant.build is None
    if not (of_completions and readable and source) or {"tokenizer", "tokenizer_backend"} & {*ours}:
        return asked, ""
    arguments: dict[str, Value] = {"tokenizer": source, "tokenizer_backend": "huggingface"}
    note = f"{asked.name} is asked with token ids of {other.name}'s tokenizer"
    if "add_bos_token" not in ours:
        bos = puts_bos_first(theirs, trust_remote_code=other.variant.trust_remote_code)
        if bos is not None:  # else it puts more around a text than BOS, which the client cannot
            arguments["add_bos_token"] = bos
            note += f", {'BOS first' if bos else 'without BOS'}, as there"
    variant = replace(asked.variant, model_args={**arguments, **ours})
    return replace(asked, variant=variant), note


def _with_command_line(
    variant: Variant, side: SideSpec, options: CompareOptions, cwd: Path
) -> Variant:
    """A guard file's model with what the command line adds to it."""
    if "trust_remote_code" in side.model_args:
        raise UsageError(
            f"--{side.role}-model-args: trust_remote_code is an option of its own",
            hint="write --trust-remote-code",
        )
    if "allow_pickle" in side.model_args:
        raise UsageError(
            f"--{side.role}-model-args: allow_pickle is a key of its own in a guard file",
            hint=f"write allow_pickle: true beside the model_args of '{variant.name}' there",
        )
    for setting in variant.settings:
        if setting.target.kind == "model_args" and setting.target.path in side.model_args:
            raise UsageError(
                f"--{side.role}-model-args: '{setting.target.path}' is what setting "
                f"'{setting.name}' of '{variant.name}' sets",
                hint=(
                    f"give the value to the setting: {_SET_OPTIONS[side.role]} {setting.name}=VALUE"
                ),
            )
    changed = replace(
        variant,
        model_args={**variant.model_args, **resolve_model_args(side.model_args, cwd)},
        trust_remote_code=variant.trust_remote_code or options.trust_remote_code,
    )
    return _with_assignment(changed, side.assignment)


def _with_assignment(variant: Variant, assignment: Assignment) -> Variant:
    values = dict(assignment)
    for setting in variant.settings:
        if values.get(setting.name) == "reference":
            values[setting.name] = setting.reference
        elif values.get(setting.name) == "candidate":
            values[setting.name] = setting.candidate
    return variant.assigned(values)


def is_user_folder(guards: GuardSet, path: Path) -> bool:
    """Whether a name of the demo, which nobody asked for, is a folder of the user's, too."""
    return guards.origin == "embedded" and os.path.exists(path)


def _check_spelling(side: SideSpec, guards: GuardSet, path: Path) -> None:
    looks_like_path = side.spec.startswith((".", "/", "~")) or side.spec.count("/") > 1
    if os.path.exists(path) or is_address(side.spec):
        return
    if looks_like_path:
        raise UsageError(
            f"{side.option}: no model or lm-eval run at '{side.spec}' ({path} does not exist"
            f"{nearest(path.name, _sibling_folders(path))})",
            hint=_WHAT_TO_GIVE,
        )
    suggestion = nearest(side.spec, (*_sibling_folders(path), *guards.names))
    if suggestion and suggestion == nearest(side.spec, guards.names) and "/" not in side.spec:
        raise UsageError(
            f"{side.option}: no model '{side.spec}' in {guards.where}{suggestion}",
            hint=f"models there: {', '.join(guards.names)}",
        )


def _spelling_hint(side: SideSpec, guards: GuardSet, path: Path) -> str:
    folder = nearest(path.name, _sibling_folders(path)).removeprefix("; ")
    named = f"models in {guards.where}: {', '.join(guards.names)}" if guards.names else ""
    return join_hints(folder, "" if "/" in side.spec else named)


def join_hints(*hints: str | None) -> str:
    """One line of several; none follows a question mark but for a blank."""
    return "; ".join(part for part in hints if part).replace("?; ", "? ")


def _sibling_folders(path: Path) -> tuple[str, ...]:
    """The folders that lie where a path leads that leads nowhere; () where that is none either."""
    try:
        return tuple(sorted(entry.name for entry in os.scandir(path.parent) if entry.is_dir()))
    except (OSError, ValueError):
        return ()


def _check_has_model(side: SideSpec, what: str, its: str) -> None:
    if side.model_args or side.assignment:
        raise UsageError(
            f"{side.option} '{side.spec}' is {what}: no model is loaded, so model arguments and "
            "settings have no effect",
            hint=f"leave them out, or name the model instead of its {its}",
        )


def _short_path(path: Path) -> str:
    return path.name if path.is_dir() else path.parent.name
