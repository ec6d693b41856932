"""What goes into loading a model: as long as none of it changes, the same model is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.code import Reading, code_digest, read_code, read_sources
from evalguard.conversion.digests import KnownDigests, digest_model, digest_path
from evalguard.conversion.planning import ConversionPlan, plan_conversion, with_build
from evalguard.core.redaction import is_secret, shown_value
from evalguard.core.scorer import ModelDescription, Request, ScoringPolicy
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.errors import GIVEN_UP, FallbackError
from evalguard.harness.blocks import requests_digest
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import find_current_commit, hub_snapshot, split_revision
from evalguard.models.identity import describe_surroundings
from evalguard.run.loading.installed_packages import LIBRARIES, digest_packages
from evalguard.run.loading.own_environment import shares_prefixes
from evalguard.store.fact_cache import FactCache, FileDigests, open_facts
from evalguard.worker.codec import WireError
from evalguard.worker.messages import DESCRIPTION, TOKEN_IDS, VARIANT

# Where the layers go depends on the memory that is free; other loaders bring code of their own.
PLACEMENT_ARGUMENTS = ("parallelize", "tp_plan", "device_map", "gpus", "autogptq", "gptqmodel")


def collect_loading_facts(
    variant: Variant,
    policy: ScoringPolicy,
    *,
    cache_dir: Path,
    surroundings: Mapping[str, Value],
    worker: bool,
    known: KnownDigests | None = None,
) -> dict[str, Value] | None:
    """Everything that decides what is loaded for a variant; ``weights`` and ``code`` are digests.

    A build recipe is run if its output is not there yet: loading would need it too.

    Args:
        surroundings: machine, packages and environment.
        worker: whether the model gets a process of its own.
        known: digests of big files from earlier runs.

    Returns:
        None where something stays open: weights or code that cannot be proven, remote code, model
        types of other libraries, a placement by free memory, a hub branch that may have moved.

    Raises:
        EvalguardError: as loading does, for a variant that cannot be planned or built.
    """
    if not shares_prefixes(variant) or variant.trust_remote_code:
        return None
    wanted = plan_conversion(variant)
    if any(wanted.model_args.get(name) for name in PLACEMENT_ARGUMENTS):
        return None
    model_args = wanted.model_args
    if variant.build is not None:
        with contextlib.redirect_stdout(sys.stderr):
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
    weights = digest_weights(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None or not _has_settled(model_args, weights, wanted.checkpoints):
        return None
    code = digest_code(variant, wanted, model_args, known)
    if code is None:
        return None
    told: Value = VARIANT.encode(variant)
    assert isinstance(told, dict)
    told.pop("name", None)
    # Only here are secrets no part of a model: what a setting is called says nothing of its value.
    told["model_args"] = {k: v for k, v in variant.model_args.items() if not is_secret(k)}
    return {
        "variant": told,
        "policy": asdict(policy),
        "weights": weights,
        "code": dict(code),
        "surroundings": dict(surroundings),
        "worker": worker,
    }


def _has_settled(
    model_args: Mapping[str, Value], weights: Mapping[str, Value], checkpoints: Sequence[str]
) -> bool:
    """Whether names of hub models stand for the files that loading would take now."""
    tokenizer = model_args.get("tokenizer")
    if isinstance(tokenizer, str) and tokenizer and "tokenizer" not in weights:
        return False  # another repository, whose commit is not looked at
    revision = str(model_args.get("revision") or "main")
    subfolder = str(model_args.get("subfolder") or "")
    named = [("pretrained", (str(model_args["pretrained"]), revision), subfolder)]
    named += [(f"weights:{one}", split_revision(one), "") for one in checkpoints]
    return all(
        _is_current(source, at, inside, weights[name]) for name, (source, at), inside in named
    )


def _is_current(source: str, revision: str, subfolder: str, digest: Value) -> bool:
    if Path(source).expanduser().exists():
        return True
    commit = find_current_commit(source, revision, subfolder)
    return commit is not None and str(digest).split()[0] == f"{source}@{commit}"


# KnownModel: what was read off a model when it was loaded before, from the same inputs.


TokenIdLists = Sequence[tuple[int, ...]]

# A sample of requests has far fewer tokens; more would be read as slowly as they are encoded.
_MOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Facts about one model, under the digest of all that goes into loading it.

    ``proofs``: what of that stands in the identity of a loaded model, too. ``secret``: what is read
    off it would be a secret.
    """

    facts: FactCache
    digest: str
    proofs: Mapping[str, Value] = field(default_factory=dict)
    secret: bool = False

    @property
    def description(self) -> ModelDescription | None:
        """What was loaded, or None."""
        found = self.facts.get("models", self.digest)
        try:
            return None if found is None else DESCRIPTION.decode(found["description"])
        except (WireError, KeyError):  # of another version's shape
            return None

    def describe_as(self, description: ModelDescription) -> None:
        """Remember what was loaded.

        Not where files have changed since the digest was taken, nor what holds a secret: a cache
        is shared, and kept by CI.
        """
        identity = description.identity or {}
        if self.secret or any(identity.get(name) != proof for name, proof in self.proofs.items()):
            return
        self.facts.put("models", self.digest, {"description": DESCRIPTION.encode(description)})

    @property
    def gave_up(self) -> FallbackError | None:
        """What documents of an earlier run have shown that it cannot do, or None."""
        found = self.facts.get("given_up", self.digest)
        if found is None or found.get("giving_up") not in GIVEN_UP:
            return None
        reason, hint = f"found in an earlier run: {found.get('reason')}", str(found.get("hint"))
        return FallbackError(reason, giving_up=found["giving_up"], hint=hint)

    def give_up(self, error: FallbackError) -> None:
        """Remember what the model cannot do, so that no later run tries it on documents again."""
        told = {"giving_up": error.giving_up, "reason": str(error), "hint": error.hint}
        self.facts.put("given_up", self.digest, told)

    def encoded(self, requests: Sequence[Request]) -> list[tuple[int, ...]] | None:
        """Return how the model encoded these requests, or None."""
        found = self.facts.get("encodings", self._of(requests))
        try:
            ids = None if found is None else TOKEN_IDS.decode(found["ids"])
        except (WireError, KeyError):
            return None
        return list(ids) if ids is not None and len(ids) == len(requests) else None

    def encode_as(self, requests: Sequence[Request], ids: TokenIdLists) -> None:
        """Remember how the model encoded these requests."""
        if sum(map(len, ids)) <= _MOST_TOKENS:
            told = TOKEN_IDS.encode(tuple(tuple(of) for of in ids))
            self.facts.put("encodings", self._of(requests), {"ids": told})

    def _of(self, requests: Sequence[Request]) -> str:
        return digest_of([self.digest, requests_digest(requests)])


@dataclass(frozen=True, slots=True)
class KnownModels:
    """All models that were loaded before, found by what they are loaded from.

    ``around``: machine, packages and environment, as they were when the run began.
    """

    cache_dir: Path
    facts: FactCache
    around: Mapping[str, Value]

    @classmethod
    def kept_in(cls, cache_dir: Path) -> KnownModels:
        """What a cache folder knows, as seen from here and now."""
        now = describe_surroundings()
        return cls(cache_dir, open_facts(cache_dir), _remains.get(digest_of(now), now))

    def left(self) -> None:
        """Take what the run itself brought in (libraries, variables that they set) for no change.

        The next run of this process finds the same models then.
        """
        _remains[digest_of(describe_surroundings())] = self.around

    def of(self, variant: Variant, policy: ScoringPolicy, *, worker: bool) -> KnownModel | None:
        """Return what is known of a model; None where that could be another one by now.

        Raises:
            EvalguardError: as loading does, for a variant that cannot be planned or built.
        """
        found = collect_loading_facts(
            variant,
            policy,
            cache_dir=self.cache_dir,
            surroundings=self.around,
            worker=worker,
            known=FileDigests(self.facts),
        )
        if found is None:
            return None
        proofs = {name: found[name] for name in ("weights", "code")}
        return KnownModel(self.facts, digest_of(found), proofs, secret=_has_secret(variant))


def _has_secret(variant: Variant) -> bool:
    asked = variant.assignment
    return any(shown_value(asked.get(s.name), s) != asked.get(s.name) for s in variant.settings)


# Surroundings as a run left them (their digest) -> as it found them.
_remains: dict[str, Mapping[str, Value]] = {}


# Digests of the files and the code that a model is loaded from.


# The hub takes larger files into its own store only (documented limit: 10 MB).
_LARGEST_IN_GIT = 20_000_000


def digest_weights(
    variant: Variant,
    model_args: Mapping[str, Value],
    known: KnownDigests | None = None,
    *,
    checkpoints: Sequence[str] = (),
) -> dict[str, Value] | None:
    """Digests of a model's files, which need not be loaded; None where they prove nothing.

    Args:
        known: digests of big files from earlier runs.
        checkpoints: others that settings take weights from, under ``weights:NAME``.
    """
    weights: dict[str, Value] = {}
    for name in _DIGESTED:
        source = model_args.get(name)
        if not isinstance(source, str) or not source:
            continue
        if Path(source).expanduser().exists():
            weights[name] = digest_model(Path(source).expanduser(), known)
        elif name == "pretrained" and variant.model in HF_TYPES:
            revision = str(model_args.get("revision") or "main")
            weights[name] = _hub_commit(
                source, revision, str(model_args.get("subfolder") or ""), known
            )
        elif name != "tokenizer":
            weights[name] = None
        elif commit := _hub_commit(source, "main", "", known):
            weights["tokenizer's commit"] = commit  # rules that are no code are in the identity
    for name, place in _other_files(model_args):
        weights[name] = digest_model(place, known)
    for checkpoint in checkpoints:
        source, revision = split_revision(checkpoint)
        folder = Path(source).expanduser()
        digest = digest_model(folder, known) if folder.exists() else None
        weights[f"weights:{checkpoint}"] = digest or _hub_commit(source, revision, "", known)
    if "pretrained" not in weights or None in weights.values():
        return None
    return weights


_DIGESTED = ("pretrained", "peft", "delta", "tokenizer")


def _other_files(model_args: Mapping[str, Value]) -> Iterator[tuple[str, Path]]:
    """Other arguments that name files or folders here, as ``gguf_file`` does."""
    for name, value in sorted(model_args.items()):
        if name not in _DIGESTED and isinstance(value, str) and os.sep in value:
            place = Path(value).expanduser()
            try:
                found = place.is_file() or place.is_dir()
            except OSError:  # too long to be a path
                continue
            if found:
                yield name, place


def _hub_commit(
    source: str, revision: str, subfolder: str, known: KnownDigests | None
) -> str | None:
    """A hub model by its commit, which stands for its files; None if it is not here."""
    snapshot = hub_snapshot(source, revision, subfolder)
    return None if snapshot is None else f"{source}@{snapshot.name}{_local_edits(snapshot, known)}"


def _local_edits(snapshot: Path, known: KnownDigests | None) -> str:
    """What was changed by hand in the local copy of a hub's commit, "" if nothing was.

    The hub's cache calls every file by what it downloaded: a large one by its SHA-256, a small one
    by git's name for it.
    """
    edited: list[Value] = []
    for file in sorted(path for path in snapshot.rglob("*") if path.is_file()):
        name, digest = file.resolve().name, digest_path(file, known)
        if name != digest and name != _git_name(file):
            edited.append([file.relative_to(snapshot).as_posix(), digest])
    return f" edited {digest_of(edited)}" if edited else ""


def _git_name(file: Path) -> str:
    """Git's name of a file; "" for one that is too large to be kept in git itself."""
    if file.stat().st_size > _LARGEST_IN_GIT:
        return ""
    content = file.read_bytes()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def digest_code(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None = None,
) -> dict[str, str] | None:
    """Digests of the code that a variant runs: hooks, a checkpoint's own, the libraries.

    None where what it depends on cannot be known: ``list_unknown_dependencies`` says what.
    """
    if list_unknown_dependencies(variant, wanted, model_args):
        return None
    digests = {
        call.function: code_digest(call.function, folder=variant.code_folder)
        for call in wanted.calls
    }
    readings = [*_read_hooks(variant, wanted)]
    for place, reading in _remote_code(variant, model_args, wanted.checkpoints):
        digests[f"remote code {place}"] = "" if reading is None else reading.digest
        readings += [] if reading is None else [reading]
    imported = {name for reading in readings for name in reading.packages}
    return {
        **digests,
        VARIABLES_KEY: digest_of(sorted({one.environment for one in readings} - {""})),
        **digest_packages((*LIBRARIES, *sorted(imported - {*LIBRARIES})), known),
    }


# Of what environment variables the code reads: loading a model may set some of them.
VARIABLES_KEY = "variables"


def list_unknown_dependencies(
    variant: Variant, wanted: ConversionPlan, model_args: Mapping[str, Value]
) -> tuple[str, ...]:
    """What a variant's code depends on that cannot be known, each with its place."""
    found: dict[str, None] = {}
    for reading in _read_hooks(variant, wanted):
        found |= dict.fromkeys((*reading.unknown, *reading.reads))
    for place, code in _remote_code(variant, model_args, wanted.checkpoints):
        if code is None:
            found[f"its config names the code {place}, which is not here"] = None
        else:
            found |= dict.fromkeys((*code.unknown, *code.reads))
    attention = str(model_args.get("attn_implementation") or "")
    if "/" in attention or model_args.get("use_kernels"):
        found["it computes with kernels from the hub"] = None
    return tuple(found)


def _read_hooks(variant: Variant, wanted: ConversionPlan) -> Iterator[Reading]:
    for call in wanted.calls:
        reading = read_code(call.function, folder=variant.code_folder)
        if reading is not None:
            yield reading


def _remote_code(
    variant: Variant, model_args: Mapping[str, Value], taken_from: Sequence[str] = ()
) -> Iterator[tuple[str, Reading | None]]:
    """Python files that a checkpoint's configs name; None for what is not on this machine.

    ``taken_from``: other checkpoints, whose modules run here too.

    ``OTHER--module.Class`` is code of another folder, or of another model of the hub.
    """
    if not variant.trust_remote_code:
        return
    revision = str(model_args.get("revision") or "main")
    named = [(str(model_args.get(name) or ""), revision) for name in ("pretrained", "tokenizer")]
    for source, at in (*named, *map(split_revision, taken_from)):
        folder = _checkpoint_folder(source, at) if source else None
        if folder is None:
            continue
        references = {one for config in _CONFIG_FILES for one in _auto_map(folder / config)}
        if (folder / "custom_generate" / "generate.py").is_file():
            references.add("custom_generate/generate.")
        for reference in sorted(references):
            place, _, module = reference.rpartition("--")
            code_at = str(model_args.get("code_revision") or "main")
            home = _checkpoint_folder(place, code_at) if place else folder
            file = None if home is None else home / f"{module.partition('.')[0]}.py"
            if file is None or not file.is_file():
                yield reference, None
            else:
                yield reference, read_sources(file, file.parent, handed=True)


_CONFIG_FILES = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer_config.json",
)  # fmt: skip


def _checkpoint_folder(source: str, revision: str) -> Path | None:
    """The folder of a checkpoint, of one of the hub as it was downloaded."""
    folder = Path(source).expanduser()
    return folder if folder.is_dir() else hub_snapshot(source, revision)


def _auto_map(config: Path) -> Iterator[str]:
    try:
        found = json.loads(config.read_text(encoding="utf-8")).get("auto_map") or {}
    except (OSError, ValueError, AttributeError):
        return
    for value in found.values() if isinstance(found, dict) else ():
        several = value if isinstance(value, list) else [value]
        yield from (one for one in several if isinstance(one, str))
