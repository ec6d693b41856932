"""What goes into loading a model: as long as none of it changes, the same model is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.digests import KnownDigests, digest_model, digest_path
from evalguard.conversion.observed_reads import MOST_KEPT, ObservedReads
from evalguard.conversion.planning import ConversionPlan, plan_conversion, with_build
from evalguard.core.redaction import is_secret, shown_value
from evalguard.core.scorer import ModelDescription, Request, ScoringPolicy
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.errors import GIVEN_UP, FallbackError
from evalguard.harness.blocks import requests_digest
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import find_current_commit, hub_snapshot, split_revision
from evalguard.models.identity import describe_surroundings
from evalguard.run.loading.foreign_code import (
    brings_code,
    list_patches,
    list_remote_code,
)
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
        None where something stays open: weights that cannot be proven, model types of other
        libraries, a placement by free memory, a hub branch that may have moved. What code of others
        reads is not among it: ``KnownModel.observed``.

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


def _is_elsewhere(reference: str) -> bool:
    """Whether a checkpoint names code that is not on this machine, or that a branch may change."""
    place = reference.rpartition("--")[0]
    return reference == "?" or bool(place and not Path(place).expanduser().is_dir())


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
    off it would be a secret. ``observes``: whether it runs code of others, and ``observed`` is what
    that read; None: it was not watched yet, or reads something else by now, and nothing is known.
    """

    facts: FactCache
    digest: str
    proofs: Mapping[str, Value] = field(default_factory=dict)
    secret: bool = False
    observes: bool = False
    observed: ObservedReads | None = None

    @property
    def key(self) -> str | None:
        """What stands for the model; None where nothing may be taken for its facts."""
        if not self.observes:
            return self.digest
        return None if self.observed is None else digest_of([self.digest, self.observed.digest])

    def looked_up(self, environment: Mapping[str, str], known: KnownDigests) -> KnownModel:
        """This model with what it was seen to read, of the last time of which all still holds."""
        for reads in _read_observed(self.facts, self.digest):
            if reads.holds(environment, observed_packages, known):
                return replace(self, observed=reads)
        return self

    def watched(self, description: ModelDescription) -> KnownModel:
        """This model with what it has read besides by now; that is kept."""
        if not self.observes or description.identity is None or self.secret:
            return self
        reads = ObservedReads.of(description.observed, observed_packages)
        reads = reads if self.observed is None else self.observed.joined(reads)
        if reads == self.observed:
            return self
        kept = [one for one in _read_observed(self.facts, self.digest) if one != self.observed]
        kept = [reads, *(one for one in kept if one.digest != reads.digest)][:MOST_KEPT]
        self.facts.put("observed", self.digest, {"reads": [one.plain for one in kept]})
        return replace(self, observed=reads)

    def identify(self, found: ModelDescription) -> ModelDescription:
        """A loaded model under the name of all that it reads, at whatever time it does."""
        if self.observed is None or found.identity is None:
            return found
        return replace(found, identity={**found.identity, OBSERVED: self.observed.digest})

    @property
    def description(self) -> ModelDescription | None:
        """What was loaded, or None."""
        found = None if self.key is None else self.facts.get("models", self.key)
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
        if self.key is None or (self.observes and not identity):
            return
        description = replace(description, observed={})
        if self.secret or any(identity.get(name) != proof for name, proof in self.proofs.items()):
            return
        self.facts.put("models", self.key, {"description": DESCRIPTION.encode(description)})

    @property
    def gave_up(self) -> FallbackError | None:
        """What documents of an earlier run have shown that it cannot do, or None."""
        found = None if self.key is None else self.facts.get("given_up", self.key)
        if found is None or found.get("giving_up") not in GIVEN_UP:
            return None
        reason, hint = f"found in an earlier run: {found.get('reason')}", str(found.get("hint"))
        return FallbackError(reason, giving_up=found["giving_up"], hint=hint)

    def give_up(self, error: FallbackError) -> None:
        """Remember what the model cannot do, so that no later run tries it on documents again."""
        told = {"giving_up": error.giving_up, "reason": str(error), "hint": error.hint}
        if self.key is not None:
            self.facts.put("given_up", self.key, told)

    def encoded(self, requests: Sequence[Request]) -> list[tuple[int, ...]] | None:
        """Return how the model encoded these requests, or None."""
        found = None if self.key is None else self.facts.get("encodings", self._of(requests))
        try:
            ids = None if found is None else TOKEN_IDS.decode(found["ids"])
        except (WireError, KeyError):
            return None
        return list(ids) if ids is not None and len(ids) == len(requests) else None

    def encode_as(self, requests: Sequence[Request], ids: TokenIdLists) -> None:
        """Remember how the model encoded these requests."""
        if self.key is not None and sum(map(len, ids)) <= _MOST_TOKENS:
            told = TOKEN_IDS.encode(tuple(tuple(of) for of in ids))
            self.facts.put("encodings", self._of(requests), {"ids": told})

    def _of(self, requests: Sequence[Request]) -> str:
        return digest_of([self.key, requests_digest(requests)])


OBSERVED = "observed"
"""Where an identity names what code of others has read."""


def _read_observed(facts: FactCache, digest: str) -> list[ObservedReads]:
    found = facts.get("observed", digest) or {}
    try:
        return [ObservedReads.of(one, observed_packages) for one in found.get("reads", ())]
    except (KeyError, TypeError, ValueError, AttributeError):  # of another version's shape
        return []


def observed_packages(names: Sequence[str]) -> dict[str, str]:
    """Digests of packages that code of others imports."""
    return {name: digest_packages([name]).get(f"package {name}", "") for name in names}


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
        plan = plan_conversion(variant)
        known = KnownModel(
            self.facts,
            digest_of(found),
            proofs,
            secret=_has_secret(variant),
            observes=brings_code(variant, plan),
        )
        if not known.observes:
            return known
        changed = {**os.environ, **plan.env}
        environment = {name: value for name, value in changed.items() if value is not None}
        return known.looked_up(environment, FileDigests(self.facts))


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
    variant: Variant, wanted: ConversionPlan, known: KnownDigests | None = None
) -> dict[str, str]:
    """Digests of the libraries that a variant runs, and of what has patched them.

    What code of others reads, itself included, is seen in the process that runs it.
    """
    patches = {} if brings_code(variant, wanted) else _digest_patches()
    return {**digest_packages(LIBRARIES, known), **patches}


def _digest_patches() -> dict[str, str]:
    return {f"{PATCH_PREFIX}{file}": digest for file, digest in list_patches().items()}


# Files that patch a library: loading a model imports what is found to be patched.
PATCH_PREFIX = "in place of a library's: "
