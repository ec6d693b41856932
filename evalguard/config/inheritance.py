"""Inheritance: what a model has after ``extends``, and which model of the file said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalguard.config.guard_document import Document
from evalguard.config.guard_shape import GuardFile, ModelEntry
from evalguard.config.problems import Problem
from evalguard.config.yaml_nodes import Loc
from evalguard.errors import nearest

# "For that model" is taken at its word: trusting one model's code says nothing about the model
# that a descendant puts in its place, nor does what its code reads.
_NEVER_INHERITED = ("extends", "trust_remote_code", "allow_pickle", "inputs", "revision")
_BY_KEY = ("model_args", "settings")
# Far above what anybody writes by hand; the time it takes to merge grows with the square.
MAX_CHAIN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """A model with everything it inherits. ``origins`` maps a key to its place in the file."""

    name: str
    entry: ModelEntry
    origins: Mapping[Loc, Loc]

    def place(self, *loc: str | int) -> Loc:
        """Return where in the file a part of this model is written."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.origins:
                return (*self.origins[loc[:length]], *loc[length:])
        return ("models", self.name, *loc)


def inherit(file: GuardFile, document: Document) -> tuple[dict[str, Inherited], list[Problem]]:
    """Return every model with what it inherits; models whose ``extends`` is wrong are left out."""
    made: dict[str, Inherited] = {}
    problems: list[Problem] = []
    for name in file.models:
        chain, problem = _chain(name, file, document)
        if problem is None:
            made[name] = _merged(name, [(step, file.models[step]) for step in reversed(chain)])
        else:
            problems.append(problem)
    return made, problems


def _chain(name: str, file: GuardFile, document: Document) -> tuple[list[str], Problem | None]:
    """Return the model and its ancestors, nearest first, or what is wrong with the chain."""
    chain = [name]
    while (parent := file.models[chain[-1]].extends) is not None:
        loc = ("models", chain[-1], "extends")
        if parent not in file.models:
            message = f"'{chain[-1]}' extends '{parent}', which is not a model of this file"
            known = ", ".join(file.models)
            message += nearest(parent, file.models)
            return chain, document.problem(loc, message, f"models of this file: {known}")
        if parent in chain:
            circle = chain[chain.index(parent) :]
            start = circle.index(min(circle))
            circle = circle[start:] + circle[:start]
            message = f"models extend each other in a circle: {' -> '.join([*circle, circle[0]])}"
            return chain, document.problem(("models", circle[0], "extends"), message)
        if len(chain) == MAX_CHAIN:
            message = f"'{name}' extends over {MAX_CHAIN} models, one through the other"
            return chain, document.problem(("models", name, "extends"), message)
        chain.append(parent)
    return chain, None


def _merged(name: str, steps: list[tuple[str, ModelEntry]]) -> Inherited:
    """Merge from the root ancestor down: maps by key, everything else replaced."""
    values: dict[str, object] = {}
    origins: dict[Loc, Loc] = {}
    for owner, entry in steps:
        for key in entry.model_fields_set:
            if key in _NEVER_INHERITED and owner != name:
                continue
            value = getattr(entry, key)
            if key in _BY_KEY:
                known = values.get(key, {})
                assert isinstance(known, dict)
                values[key] = {**known, **value}
                origins.update({(key, item): ("models", owner, key, item) for item in value})
            else:
                values[key] = value
                origins[(key,)] = ("models", owner, key)
    return Inherited(name=name, entry=ModelEntry.model_construct(None, **values), origins=origins)
