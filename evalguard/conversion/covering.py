"""Patterns that name given tensors of a model, and no others."""

from __future__ import annotations

import re
from collections.abc import Collection

from evalguard.conversion.globs import compile_glob

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Covering:
    """Finds patterns over the names of one model's tensors.

    Args:
        tensors: the names of all its tensors.
    """

    def __init__(self, tensors: Collection[str]) -> None:
        self._inside: dict[str, set[str]] = {}
        for tensor in tensors:
            for name in _upwards(tensor):
                self._inside.setdefault(name, set()).add(tensor)
        self._named: dict[str, list[str]] = {}

    def pattern(self, wanted: Collection[str]) -> str:
        """Return a pattern that names exactly these tensors, as briefly as can be.

        Modules stand for all that is in them; modules that differ in their numbers only, and are
        all wanted, share a pattern.
        """
        whole = set(wanted)
        chosen = dict.fromkeys(self._highest(tensor, whole) for tensor in wanted)
        patterns: dict[str, None] = {}
        for name in chosen:
            folded = _NUMBER.sub("*", name)
            named = self._names_of(folded)
            shared = len(named) > 1 and all(other in chosen for other in named)
            patterns[folded if shared else name] = None
        return ",".join(patterns)

    def _highest(self, tensor: str, whole: set[str]) -> str:
        """The outermost module of which all tensors are wanted, else the tensor itself."""
        return [name for name in _upwards(tensor) if self._inside[name] <= whole][-1]

    def _names_of(self, folded: str) -> list[str]:
        if folded not in self._named:
            fits = compile_glob(folded).fullmatch
            self._named[folded] = [name for name in self._inside if fits(name)]
        return self._named[folded]


def _upwards(name: str) -> list[str]:
    """A dotted name and those of all that it is in, from the inside out."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
