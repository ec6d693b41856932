"""Text of models and data with what cannot be seen written out, and not too long."""

from __future__ import annotations

import re

# Control characters but tab and line feed; directions and isolates; what has no width; tags; halves
# of characters. The joiners that scripts and emoji need (200C, 200D) stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_PICTURES = 0x2400  # Unicode has a picture of every control character
_DELETE = 0x7F


def make_visible(text: str) -> str:
    """Write out what has no shape of its own, or would change the direction of what follows.

    >>> make_visible("a\\x1b[31mb\\u202ec")
    'a␛[31mb‹U+202E›c'
    """
    return _HIDDEN.sub(_visible_form, text)


def _visible_form(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == _DELETE else f"‹U+{code:04X}›"


def cut_middle(text: str, most: int) -> str:
    """Cut a text in its middle to about ``most`` characters, and say how many are left out."""
    if len(text) <= most:
        return text
    tail = most * 2 // 3  # what a model answers to stands at the end of its prompt
    left_out = len(text) - most
    return f"{text[: most - tail]} ‹{left_out:,} characters left out› {text[-tail:]}"


def cut_to_tail(text: str, most: int) -> str:
    """Keep the end of a text."""
    return text if len(text) <= most else f"…{text[len(text) - most :]}"
