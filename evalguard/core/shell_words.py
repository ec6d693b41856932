"""The words of a command line, as a shell reads it: shlex's, in time that grows as the text does.

shlex puts a word together character by character, each time anew: a name of a megabyte, which a
stored result may hold, would take hours.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<plain>[^ \t\r\n'"\\]+)|'(?P<single>[^']*)'"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<open>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


def shell_words(command: str) -> list[str]:
    """Return the words of a command, without their quotes.

    >>> shell_words("evalguard compare --base 'my model'")
    ['evalguard', 'compare', '--base', 'my model']

    Raises:
        ValueError: a quote is not closed, or nothing follows a backslash.
    """
    words: list[list[str]] = []
    inside = False
    for piece in _PIECE.finditer(command):
        kind, text = piece.lastgroup, piece[piece.lastgroup or 0]
        if kind == "open":
            raise ValueError(f"nothing closes {text} in the command")
        if kind != "blank":
            if not inside:
                words.append([])
            words[-1].append(_ESCAPED.sub(r"\1", text) if kind == "double" else text)
        inside = kind != "blank"
    return ["".join(pieces) for pieces in words]
