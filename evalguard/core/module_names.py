"""Names of modules and tensors that differ in the numbers of their layers and experts only."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def fold_numbers(name: str) -> str:
    """Return a dotted name with "*" for every part that is a number: "layers.*.mlp"."""
    return _NUMBER.sub("*", name)
