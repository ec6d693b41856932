"""KnownModel: what was read off a model when it was loaded before, from the same inputs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.installed_packages import (
    BESIDE,
    LIBRARIES,
    digest_environment,
    digest_packages,
)
from evalguard.conversion.observed_reads import KnownDigests, digest_model, digest_path
from evalguard.conversion.planning import ConversionPlan, plan_conversion, with_build
from evalguard.core.codec import PlainError
from evalguard.core.redaction import is_secret, shown_value
from evalguard.core.scorer import ModelDescription, Request, ScoringPolicy
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.engine.loading.foreign_code import (
    brings_code,
    digest_foreign_code,
    list_patches,
    list_remote_code,
)
from evalguard.engine.loading.own_environment import shares_prefixes
from evalguard.errors import GIVEN_UP, FallbackError
from evalguard.harness.request_blocks import requests_digest
from evalguard.models.arguments import HF_TYPES, SERVED_TYPES
from evalguard.models.checkpoint_files import find_current_commit, hub_snapshot, split_revision
from evalguard.models.identity import describe_surroundings
from evalguard.run_token import RUN_KEY, run_of, without_run
from evalguard.store.fact_cache import FactCache, FileDigests, open_facts
from evalguard.worker.messages import DESCRIPTION, TOKEN_IDS, VARIANT

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
    for name, path in _other_files(model_args):
        weights[name] = digest_model(path, known)
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
            path = Path(value).expanduser()
            try:
                exists = path.is_file() or path.is_dir()
            except OSError:  # too long to be a path
                continue
            if exists:
                yield name, path


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
    variant: Variant, wanted: ConversionPlan, known: KnownDigests | None = None
) -> dict[str, str]:
    """Digests of the libraries that a variant runs, what has patched them, and code of others.

    Raises:
        UsageError: an input of that code is not there.
    """
    patches = {} if brings_code(variant, wanted) else _digest_patches()
    foreign = digest_foreign_code(variant, wanted)
    every = foreign and RUN_KEY not in foreign  # it may import any package
    libraries = (
        digest_environment(known) if every else digest_packages((*LIBRARIES, *BESIDE), known)
    )
    return {**libraries, **patches, **foreign}


def _digest_patches() -> dict[str, str]:
    return {f"{PATCH_PREFIX}{file}": digest for file, digest in list_patches().items()}


# Files that patch a library: loading a model imports what is found to be patched.
PATCH_PREFIX = "in place of a library's: "
_TAKEN_PREFIX = "weights:"  # digests of checkpoints that settings take weights from


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What loading a variant takes.

    Attributes:
        plan: its settings by target.
        model_args: of lm-eval, with the path of what was built in its place.
        proofs: digests of weights and code, as they are now; None where they cannot be proven.
    """

    variant: Variant
    plan: ConversionPlan
    model_args: Mapping[str, Value]
    proofs: Mapping[str, Value] | None

    @classmethod
    def of(
        cls, variant: Variant, *, cache_dir: Path, known: KnownDigests | None = None
    ) -> LoadPlan:
        """Plan a variant, build it if it is not built yet, and digest its files.

        Raises:
            SettingError: settings that cannot be planned.
            BuildError: the build recipe failed.
        """
        wanted = plan_conversion(variant)
        model_args: Mapping[str, Value] = wanted.model_args
        if variant.build is not None and variant.serve is None:  # else its server has it
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
        proofs = prove_files(variant, wanted, model_args, known)
        return cls(variant=variant, plan=wanted, model_args=model_args, proofs=proofs)

    def loads_as(self, other: LoadPlan) -> bool:
        """Whether both are the same model, from the same files, until settings edit it."""
        files = [
            None if plan.proofs is None else _without_taken(plan.proofs["weights"])
            for plan in (self, other)
        ]
        return files[0] == files[1] and same_loading(self.variant, other.variant)


def same_loading(one: Variant, other: Variant) -> bool:
    """Whether two variants differ at most in settings that edit the loaded model.

    Raises:
        SettingError: settings that cannot be planned.
    """
    return digest_of(_loading_settings(one)) == digest_of(_loading_settings(other))


def _loading_settings(variant: Variant) -> dict[str, Value]:
    wanted = plan_conversion(variant)
    return {
        "model": variant.model,
        "model_args": dict(wanted.model_args),
        "config": dict(wanted.config_overrides),
        "env": dict(wanted.env),
        "build": None if variant.build is None else asdict(variant.build),
        "inputs": dict(wanted.build_inputs),
        "trust": [variant.trust_remote_code, variant.allow_pickle, variant.allow_code],
        "code_folder": variant.code_folder,
        **({} if variant.serve is None else {"serve": dict(variant.serve.proofs)}),
    }


def prove_files(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """Digests of the weights and of the libraries; None where the weights cannot be proven."""
    if variant.serve is not None:
        return dict(variant.serve.proofs) or None
    if variant.model in SERVED_TYPES:
        return None  # files that a client names are not what a server has
    weights = digest_weights(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None:
        return None
    return {"weights": weights, "code": dict(digest_code(variant, wanted, known))}


def _without_taken(weights: Value) -> dict[str, Value]:
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if not name.startswith(_TAKEN_PREFIX)}


def taken_sources(weights: Value) -> dict[str, Value]:
    """Digests of the other checkpoints that settings take weights and modules from."""
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if name.startswith(_TAKEN_PREFIX)}


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
        None where something stays open: weights that cannot be proven, model types of other
        libraries, a placement by free memory, a hub branch that may have moved.

    Raises:
        EvalguardError: as loading does, for a variant that cannot be planned or built.
    """
    wanted = plan_conversion(variant)
    code_of = list_remote_code(variant, wanted.model_args, wanted.checkpoints)
    if not shares_prefixes(variant) or any(map(_is_elsewhere, code_of)):
        return None
    if any(wanted.model_args.get(name) for name in PLACEMENT_ARGUMENTS):
        return None
    model_args = wanted.model_args
    if variant.build is not None:
        with contextlib.redirect_stdout(sys.stderr):
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
    weights = digest_weights(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None or not _has_settled(model_args, weights, wanted.checkpoints):
        return None
    code = digest_code(variant, wanted, known)
    encoded: Value = VARIANT.encode(variant)
    assert isinstance(encoded, dict)
    encoded.pop("name", None)
    # Only here are secrets no part of a model: what a setting is called says nothing of its value.
    encoded["model_args"] = {k: v for k, v in variant.model_args.items() if not is_secret(k)}
    return {
        "variant": encoded,
        "policy": asdict(policy),
        "weights": weights,
        "code": dict(code),
        "surroundings": dict(surroundings),
        "worker": worker,
    }


def _is_elsewhere(reference: str) -> bool:
    """Whether a checkpoint names code that is not on this machine, or that a branch may change."""
    folder = reference.rpartition("--")[0]
    return reference == "?" or bool(folder and not Path(folder).expanduser().is_dir())


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
    named += [
        (f"weights:{checkpoint}", split_revision(checkpoint), "") for checkpoint in checkpoints
    ]
    return all(
        _is_current(source, at, inside, weights[name]) for name, (source, at), inside in named
    )


def _is_current(source: str, revision: str, subfolder: str, digest: Value) -> bool:
    if Path(source).expanduser().exists():
        return True
    commit = find_current_commit(source, revision, subfolder)
    return commit is not None and str(digest).split()[0] == f"{source}@{commit}"


TokenIdLists = Sequence[tuple[int, ...]]
# A sample of requests has far fewer tokens; more would be read as slowly as they are encoded.
_MOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Facts about one model, under the digest of all that goes into loading it.

    ``proofs``: what of that stands in the identity of a loaded model, too. ``secret``: what is read
    off it would be a secret. ``unfinished``: runs that scored it and did not finish, the last one
    first, where they kept the scores for themselves and this run does not go on from one of them.
    """

    facts: FactCache
    digest: str
    proofs: Mapping[str, Value] = field(default_factory=dict)
    secret: bool = False
    unfinished: tuple[str, ...] = ()

    @property
    def description(self) -> ModelDescription | None:
        """What was loaded, or None."""
        stored = self.facts.get("models", self.digest)
        try:
            return None if stored is None else DESCRIPTION.decode(stored["description"])
        except (PlainError, KeyError):  # of another version's shape
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
        stored = self.facts.get("given_up", self.digest)
        if stored is None or stored.get("giving_up") not in GIVEN_UP:
            return None
        reason, hint = f"found in an earlier run: {stored.get('reason')}", str(stored.get("hint"))
        return FallbackError(reason, giving_up=stored["giving_up"], hint=hint)

    def give_up(self, error: FallbackError) -> None:
        """Remember what the model cannot do, so that no later run tries it on documents again."""
        record = {"giving_up": error.giving_up, "reason": str(error), "hint": error.hint}
        self.facts.put("given_up", self.digest, record)

    def encoded(self, requests: Sequence[Request]) -> list[tuple[int, ...]] | None:
        """Return how the model encoded these requests, or None."""
        stored = self.facts.get("encodings", self._of(requests))
        try:
            ids = None if stored is None else TOKEN_IDS.decode(stored["ids"])
        except (PlainError, KeyError):
            return None
        return list(ids) if ids is not None and len(ids) == len(requests) else None

    def encode_as(self, requests: Sequence[Request], ids: TokenIdLists) -> None:
        """Remember how the model encoded these requests."""
        if sum(map(len, ids)) <= _MOST_TOKENS:
            encoded = TOKEN_IDS.encode(tuple(tuple(of) for of in ids))
            self.facts.put("encodings", self._of(requests), {"ids": encoded})

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
    _begun: set[str] = field(default_factory=set)

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
        loading_facts = collect_loading_facts(
            variant,
            policy,
            cache_dir=self.cache_dir,
            surroundings=self.around,
            worker=worker,
            known=FileDigests(self.facts),
        )
        if loading_facts is None:
            return None
        proofs = {name: loading_facts[name] for name in ("weights", "code")}
        return KnownModel(
            self.facts,
            digest_of(loading_facts),
            proofs,
            secret=_has_secret(variant),
            unfinished=self._begin(loading_facts),
        )

    def _begin(self, found: Mapping[str, Value]) -> tuple[str, ...]:
        """Note which run scores a model for itself; return those that did not finish."""
        run = run_of(found)
        if not run:
            return ()
        model = digest_of(without_run(found))
        runs = (self.facts.get(_UNFINISHED, model) or {}).get("runs")
        before = tuple(map(str, runs)) if isinstance(runs, list) else ()
        # Whichever kept most is among them: one that was stopped at once hides no other.
        now = [run, *(earlier for earlier in before if earlier != run)][:_MOST_UNFINISHED]
        self.facts.put(_UNFINISHED, model, {"runs": now})
        self._begun.add(model)
        return () if run in before else before

    def finish(self) -> None:
        """Note that the run needs nothing any more that it has kept for itself."""
        for model in self._begun:
            self.facts.put(_UNFINISHED, model, {"runs": []})


_UNFINISHED, _MOST_UNFINISHED = "unfinished", 3


def _has_secret(variant: Variant) -> bool:
    asked = variant.assignment
    return any(shown_value(asked.get(s.name), s) != asked.get(s.name) for s in variant.settings)


# Surroundings as a run left them (their digest) -> as it found them.
_remains: dict[str, Mapping[str, Value]] = {}
