"""The server that evalguard starts for a model: its command with all settings, and its identity."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from evalguard.conversion.building import build
from evalguard.conversion.observed_reads import KnownDigests, digest_path
from evalguard.conversion.planning import ConversionPlan, plan_conversion
from evalguard.core.redaction import is_secret
from evalguard.core.scorer import AheadScorer, Request, Response, Scorer
from evalguard.core.settings import ServeRecipe, Value, Variant, digest_of
from evalguard.engine.servers import ServerCommand, ServerLease, lease_server
from evalguard.errors import EvaluationError, SettingError, UsageError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.runtimes.types import RUNTIME_TYPES
from evalguard.store.fact_cache import FileDigests, open_facts
from evalguard.worker.environments import (
    Interpreter,
    list_packages,
    prepare_interpreter,
    worker_variables,
)


def put_flags(command: Sequence[str], flags: Mapping[str, Value]) -> list[str]:
    """Return a command with flags in place of those that it has under these names, else behind it.

    ``true`` puts the flag alone, ``false`` and ``null`` leave it out, a list becomes several words,
    a mapping JSON. What is replaced is ``--FLAG=VALUE``, or ``--FLAG`` with the word behind it that
    does not begin with a dash: no word for ``true`` and ``false``, which are of switches, and all
    of them for a list. Underscores and dashes in names are one.

    Args:
        flags: name -> value; a name without dashes is a long one.
    """
    words = list(command)
    for name, value in flags.items():
        flag = name if name.startswith("-") else f"--{name}"
        start = _find(words, flag)
        replacement = [] if value is None or value is False else [flag, *_as_words(value)]
        if start is None:
            words += replacement
            continue
        most = 0 if isinstance(value, bool) else len(words) if isinstance(value, list) else 1
        end = _end_of(words, start, most)
        own, joined, _ = words[start].partition("=")  # an equal command is an equal server
        if replacement:
            replacement = (
                [f"{own}={replacement[1]}"]
                if joined and len(replacement) == 2
                else [own, *replacement[1:]]
            )
        words[start:end] = replacement
    return words


def _find(words: Sequence[str], flag: str) -> int | None:
    def same(word: str) -> bool:
        return word.partition("=")[0].replace("_", "-") == flag.replace("_", "-")

    return next((index for index, word in enumerate(words) if index and same(word)), None)


def _end_of(words: Sequence[str], place: int, most: int) -> int:
    """Where a flag ends that has at most so many words behind it."""
    end = place + 1
    last = end if "=" in words[place] else min(end + most, len(words))
    while end < last and not re.match(r"-[^\d.]", words[end]):
        end += 1
    return end


def _as_words(value: Value) -> list[str]:
    if value is True:
        return []
    if isinstance(value, list):
        return [str(item) for item in value]
    return [json.dumps(value)] if isinstance(value, dict) else [str(value)]


_LAST_WORDS = 5.0  # seconds that a server that no longer answers may take to have ended
_PYTHON, _BUILD = "{python}", "{build}"
_MODEL_FILES = (".gguf", ".ggml", ".safetensors", ".bin", ".pt", ".pth", ".onnx")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")


def check_served(variant: Variant) -> None:
    """Refuse a server for a model type that asks none.

    Raises:
        UsageError: naming the type.
    """
    if variant.serve is not None and variant.model in (*HF_TYPES, *RUNTIME_TYPES):
        raise UsageError(
            f"'{variant.name}' starts a server, and model type '{variant.model}' asks none",
            hint="write model: local-completions (or another type that takes a base_url)",
        )


def with_server(variant: Variant, cache_dir: Path) -> tuple[Variant, ServerLease | None]:
    """Return a variant that asks a running server, and the use of that; as it is without ``serve``.

    An equal server that runs already is used again.

    Raises:
        UsageError: code from this guard file is not allowed to run.
        SettingError: a setting that the server's command cannot carry.
        EvaluationError: the server, its environment or its model cannot be made.
    """
    serve = variant.serve
    if serve is None:
        return variant, None
    if not variant.allow_code:
        raise UsageError(
            f"'{variant.name}' starts a server, and code from this guard file may not run",
            hint="name the guard file with --config, if you trust it, or use --allow-code",
        )
    plan = plan_conversion(variant)
    python, variables = _interpreter(variant, plan, cache_dir)
    _check_packages(variant, plan, python)
    known = {_PYTHON: python.python}
    if variant.build is not None:
        with contextlib.redirect_stdout(sys.stderr):
            made = build(variant, plan, cache_dir, python=python.python, variables=variables)
        known[_BUILD] = str(made)
    own = {name: value and _fill(value, known) for name, value in serve.env.items()}
    own |= plan.serve_env
    wanted = ServerCommand(
        name=variant.name,
        command=_fill_command(serve, plan, known),
        env={**variables, **own},
        url=serve.url,
        ready=serve.ready,
        folder=serve.folder,
        start_limit=serve.start_limit,
    )
    proofs = _Proofs(wanted, own, python, FileDigests(open_facts(cache_dir))).collect()
    lease = lease_server(wanted, cache_dir.absolute() / "logs")
    arguments = {
        name: _fill(value, known) if isinstance(value, str) else value
        for name, value in variant.model_args.items()
    }
    started = replace(
        variant,
        model_args={**arguments, "base_url": lease.server.url},
        serve=replace(serve, proofs=proofs),
    )
    return started, lease


def _fill_command(
    serve: ServeRecipe, plan: ConversionPlan, known: Mapping[str, str]
) -> tuple[str, ...]:
    """The command with all flags; ``python`` as its first word is the model's interpreter."""
    first, *rest = (_fill(word, known) for word in put_flags(serve.command, plan.serve_flags))
    return (known[_PYTHON] if first in ("python", "python3") else first, *rest)


def _interpreter(
    variant: Variant, plan: ConversionPlan, cache_dir: Path
) -> tuple[Interpreter, dict[str, str | None]]:
    """Where the server runs, and the changes to this process's environment that go with it."""
    if variant.environment is None:
        return Interpreter(python=sys.executable, version=""), {}
    interpreter = prepare_interpreter(
        variant.environment, plan.packages, cache_dir, name=variant.name
    )
    programs = str(Path(interpreter.python).parent)
    changes = worker_variables(cache_dir) | {"PYTHONSAFEPATH": None}  # a script's own folder counts
    return interpreter, {**changes, "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}


def _check_packages(variant: Variant, plan: ConversionPlan, python: Interpreter) -> None:
    """Read the versions of packages back from the environment that was made."""
    there = {_plain(name) for name in python.packages}
    for package, version in plan.packages.items():
        wanted = f"{package}-{version.split()[0]}"
        if _plain(wanted) not in there:
            raise SettingError(
                f"'{variant.name}': package.{package} did not take: its environment has no "
                f"{wanted}",
                target=f"package.{package}",
            )


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _fill(text: str, known: Mapping[str, str]) -> str:
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text


class _Proofs:
    """Digests of all that a server is started from."""

    def __init__(
        self,
        wanted: ServerCommand,
        env: Mapping[str, str | None],
        python: Interpreter,
        known: KnownDigests,
    ) -> None:
        self._wanted = wanted
        self._env = env
        self._python = python
        self._known = known
        self._weights: dict[str, Value] = {}
        self._open = False  # something that no digest shows

    def collect(self) -> dict[str, Value]:
        """Weights, code and command; {} where a model from elsewhere may be served.

        Proven is a command that names a model on this machine, and nothing that may be a hub id or
        code whose text does not tell what it runs.
        """
        words = [self._described(word) for word in self._wanted.command[1:]]
        env: dict[str, Value] = {
            name: value if value is None else "=".join(self._described(value).split("=", 1))
            for name, value in self._env.items()
            if not is_secret(name)
        }
        program = shutil.which(self._wanted.command[0], path=self._wanted.env.get("PATH"))
        if self._open or not self._weights or program is None:
            return {}
        return {
            "weights": self._weights,
            "code": {"program": self._program_digest(Path(program))},
            "server": {"command": list(words), "env": env, "ready": self._wanted.ready},
        }

    def _described(self, word: str) -> str:
        """A word of the command with the digest of a path in its place."""
        flag, equals, value = word.partition("=")
        if equals and flag.startswith("-"):
            return f"{flag}={self._described(value)}"
        path = self._path(word)
        if path is None:
            self._open |= bool(_HUB_ID.fullmatch(word))
            return word
        self._open |= path.suffix == ".py"  # nobody sees what it imports and reads
        digest = digest_path(path, self._known)
        if path.suffix in _MODEL_FILES or (path / "config.json").is_file():
            self._weights[f"file {len(self._weights) + 1}"] = digest
        return digest

    def _path(self, word: str) -> Path | None:
        try:
            path = Path(self._wanted.folder, word).expanduser()
            exists = path.is_file() or ("/" in word and path.is_dir())
        except (OSError, ValueError, RuntimeError):  # too long to be a path, no such home
            return None
        return path if word and exists else None

    def _program_digest(self, program: Path) -> str:
        """Digest of a program, the libraries beside it, and the packages of its environment."""
        packages = self._python.packages or list_packages(program.parent.parent)
        libraries = sorted(_libraries(program.resolve().parent))
        files = [digest_path(path, self._known) for path in (program, *libraries)]
        return digest_of([files, list(packages)])


def _libraries(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.glob("*.so*") if path.is_file())


class _ServedScorer:
    """A scorer whose server is needed as long as it is open."""

    def __init__(self, scorer: Scorer, lease: ServerLease) -> None:
        self._scorer = scorer
        self._lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed; some servers tokenise themselves."""
        with self._explain_end():
            return self._scorer.encode(requests)

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests."""
        with self._explain_end():
            return self._scorer.score(requests)

    def probe(self, requests: Sequence[Request]) -> None:
        """See whether the server gives what requests of these kinds need."""
        with self._explain_end():
            cast("AheadScorer", self._scorer).probe(requests)

    def ask_ahead(self, blocks: Iterable[Sequence[Request]]) -> None:
        """Begin to ask for blocks."""
        with self._explain_end():
            cast("AheadScorer", self._scorer).ask_ahead(blocks)

    @contextmanager
    def _explain_end(self) -> Iterator[None]:
        """Where the server has ended meanwhile, say how, with its last lines."""
        try:
            yield
        except EvaluationError as error:
            server = self._lease.server
            fate = "" if server.answers() else server.fate(wait=_LAST_WORDS)
            if not fate:
                raise
            raise server.failure(f"{fate} while it was asked") from error

    def close(self) -> None:
        """Release the model and its server."""
        try:
            self._scorer.close()
        finally:
            self._lease.release()


def with_lease(scorer: Scorer, lease: ServerLease | None) -> Scorer:
    """Return a scorer that releases its server when it is closed; as it is where it has none."""
    return scorer if lease is None else cast("Scorer", _ServedScorer(scorer, lease))
