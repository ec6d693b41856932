"""Guard and GuardSet: what guard files say, as domain objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from evalguard.config.options import RunOptions
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.gate import GateOptions, Waiver
from evalguard.core.settings import Variant
from evalguard.errors import UsageError, nearest

Origin = Literal["named", "evalguard.yaml", "configs/", "embedded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two models to compare.

    ``differs`` holds "prompt" and "tokens" where that difference is meant; ``tasks`` and
    ``requests`` replace the guard file's where either is given. ``accept`` holds known
    degradations that are let through. ``gate`` is the pair's own; None where the file's counts.
    """

    base: str
    candidate: str
    differs: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    requests: Path | None = None
    accept: tuple[Waiver, ...] = ()
    gate: GateOptions | None = None

    @property
    def names_tasks(self) -> bool:
        """Whether it says itself what is asked: then the file's tasks and requests do not count."""
        return bool(self.tasks or self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeUse:
    """Something of a guard file that needs trust: what it is, and ``FILE:LINE``."""

    what: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard file.

    ``label`` is the file as messages name it; ``file`` its absolute path. ``include_paths`` are
    absolute folders, ``include_where`` the ``FILE:LINE`` that names them; ``requests`` is a file of
    chat requests. ``clusters`` maps tasks to the field of their documents that says which belong
    together, ``answers`` tasks to what structure their answers must have. ``code_allowed`` says
    whether the user trusts this file; ``code_uses`` lists by model what needs it, ``file_uses``
    what needs it beside the models. ``places`` holds the ``FILE:LINE`` of every model, (name,), and
    setting, (name, setting).
    ``parents`` says which model each one extends; None where it extends none.
    """

    file: Path
    label: str
    origin: Origin
    variants: Mapping[str, Variant]
    pairs: tuple[Pair, ...] = ()
    tasks: tuple[str, ...] = ()
    requests: Path | None = None
    include_paths: tuple[Path, ...] = ()
    include_where: str = ""
    clusters: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, ExpectedAnswer] = field(default_factory=dict)
    gate: GateOptions = field(default_factory=GateOptions)
    run: RunOptions = field(default_factory=RunOptions)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    parents: Mapping[str, str | None] = field(default_factory=dict)
    code_allowed: bool = False
    code_uses: Mapping[str, tuple[CodeUse, ...]] = field(default_factory=dict)
    file_uses: tuple[CodeUse, ...] = ()
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def place(self, model: str, setting: str = "") -> str:
        """Return where a model, or a setting of it, is written; the file where that is unknown."""
        whole = self.places.get((model,), self.label)
        return self.places.get((model, setting), whole)

    def pair(self, base: str, candidate: str) -> Pair | None:
        """Return the pair of these two models, None if the file declares none."""
        wanted = (base, candidate)
        return next((p for p in self.pairs if (p.base, p.candidate) == wanted), None)

    def gate_of(self, base: str, candidate: str) -> GateOptions:
        """Return the gate of these two models: the pair's, else the file's."""
        pair = self.pair(base, candidate)
        return self.gate if pair is None or pair.gate is None else pair.gate

    def tasks_of(self, base: str, candidate: str) -> tuple[str, ...]:
        """Return the tasks for these two models: the pair's, else the file's."""
        pair = self.pair(base, candidate)
        return pair.tasks if pair is not None and pair.names_tasks else self.tasks

    def requests_of(self, base: str, candidate: str) -> Path | None:
        """Return the file of chat requests for these two models, as ``tasks_of`` the tasks."""
        pair = self.pair(base, candidate)
        return pair.requests if pair is not None and pair.names_tasks else self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSet:
    """All guard files of one invocation; no two of them define one name."""

    guards: tuple[Guard, ...]

    @property
    def origin(self) -> Origin:
        """Where the files come from."""
        return self.guards[0].origin

    @property
    def where(self) -> str:
        """The files as messages name them."""
        return ", ".join(guard.label for guard in self.guards)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, in the files' order."""
        return tuple(name for guard in self.guards for name in guard.variants)

    def require_own(self) -> GuardSet:
        """These, where one was named or is here.

        Raises:
            UsageError: only the built-in demo is left, which says nothing of what is here.
        """
        if self.origin != "embedded":
            return self
        raise UsageError(
            "there is no guard file here: no evalguard.yaml, and no YAML file in configs/",
            hint="name one; `evalguard init` writes one to start from; demo is the built-in one",
        )

    def find(self, name: str) -> tuple[Guard, Variant]:
        """Return a model, every setting at its candidate value, and the file that defines it.

        Raises:
            UsageError: for an unknown name, with the nearest one and the list of all.
        """
        for guard in self.guards:
            if name in guard.variants:
                return guard, guard.variants[name]
        raise UsageError(
            f"no model '{name}' in {self.where}{nearest(name, self.names)}",
            hint=f"models: {', '.join(self.names)}; a folder or a hub id can be given too",
        )
