"""Patterns for qualified module names such as ``model.layers.*.self_attn``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from evalguard.errors import SettingError

_COMMA = re.compile(r",(?![^\[]*\])")  # not inside a set of characters


def compile_glob(glob: str) -> re.Pattern[str]:
    """Translate a pattern over dotted names.

    ``*`` is any run of characters within one dotted part (so ``layers.*`` is every layer, but not
    what is inside them), ``**`` is any run of characters, dots included, ``?`` one character that
    is no dot, ``[0-3]`` and ``[!0]`` a set of characters.
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
    found: set[str] = set()
    for one in map(str.strip, _COMMA.split(glob)):
        pattern = compile_glob(one)
        matched = {name for name in names if name and pattern.fullmatch(name)}
        if not matched:
            raise SettingError(
                f"setting '{setting}': no module is named '{one}'",
                hint=f"nearest: {', '.join(_nearest_names(one, names)) or 'none'} "
                "('*' stays within one dotted part, '**' crosses dots)",
            )
        found |= matched
    return [name for name in names if name in found]


def _nearest_names(glob: str, names: Iterable[str], count: int = 4) -> list[str]:
    # Layers repeat the same names: numbers are folded, so that the list shows different modules.
    folded = dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in names if name)
    return difflib.get_close_matches(glob.replace("**", "*"), list(folded), n=count, cutoff=0.3)
