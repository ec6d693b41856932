"""Patterns that name given tensors of a model, and no others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from evalguard.core.settings import fold_numbers
from evalguard.errors import SettingError


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
            folded = fold_numbers(name)
            named = self._names_of(folded)
            shared = len(named) > 1 and all(sibling in chosen for sibling in named)
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


_COMMA = re.compile(r",(?![^\[]*\])")  # not inside a set of characters


def compile_glob(glob: str) -> re.Pattern[str]:
    """Translate a pattern over dotted names.

    ``*`` is any run of characters within one dotted part (so ``layers.*`` is every layer, but not
    what is inside them), ``**`` is any run of characters, dots included, ``?`` one character that
    is not a dot, ``[0-3]`` and ``[!0]`` a set of characters.
    """
    parts: list[str] = []
    position = 0
    while position < len(glob):
        character = glob[position]
        closing = glob.find("]", position + 2) if character == "[" else -1
        if glob.startswith("**", position):
            parts.append(".*")
            position += 1
        elif character == "*":
            parts.append(r"[^.]*")
        elif character == "?":
            parts.append(r"[^.]")
        elif closing > 0:
            inner = glob[position + 1 : closing].replace("\\", r"\\")
            parts.append("[" + ("^" + inner[1:] if inner.startswith("!") else inner) + "]")
            position = closing
        else:
            parts.append(re.escape(character))
        position += 1
    return re.compile("".join(parts))


def matching(glob: str, names: Sequence[str], *, setting: str) -> list[str]:
    """Return the names that a pattern, or one of several with commas between, matches in full.

    They are in the order given, each once.

    Raises:
        SettingError: if a pattern matches none; it names the nearest module names.
    """
    matches: set[str] = set()
    for part in map(str.strip, _COMMA.split(glob)):
        pattern = compile_glob(part)
        matched = {name for name in names if name and pattern.fullmatch(name)}
        if not matched:
            raise SettingError(
                f"setting '{setting}': no module is named '{part}'",
                hint=f"nearest: {', '.join(_nearest_names(part, names)) or 'none'} "
                "('*' stays within one dotted part, '**' crosses dots)",
                setting=setting,
            )
        matches |= matched
    return [name for name in names if name in matches]


def _nearest_names(glob: str, names: Iterable[str], count: int = 4) -> list[str]:
    # Layers repeat the same names: numbers are folded, so that the list shows different modules.
    folded = dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in names if name)
    return difflib.get_close_matches(glob.replace("**", "*"), list(folded), n=count, cutoff=0.3)
