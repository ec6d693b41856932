"""Python's search for garbage, in a program that imports torch and lm-eval.

They make a million objects that stay. Looking for garbage among them a thousand times, as Python
does by itself, takes a quarter of the imports' time, and once more at the end a second.
"""

from __future__ import annotations

import gc

_MANY_OBJECTS = 500_000


def raise_gc_threshold() -> None:
    """Look for garbage only after many new objects, from now on."""
    gc.set_threshold(_MANY_OBJECTS, 10, 10)


def freeze_gc_at_exit() -> None:
    """Look at nothing that is there any more: the process ends, and its memory goes with it."""
    gc.freeze()


def freeze_gc() -> None:
    """Free what nobody needs any more, and never look at the rest again: libraries and caches.

    For a process that does one job after the other, after each.
    """
    gc.collect()
    gc.freeze()
