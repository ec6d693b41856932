"""Hypothesis's examples, the same in every process."""

from __future__ import annotations

from hypothesis.internal.conjecture import providers


def draw_no_constants_of_loaded_modules() -> None:
    """Let examples depend on their test alone.

    From 6.131 on Hypothesis draws from the constants of all modules of ours that are loaded, too.
    Which these are depends on the tests that ran before in the same process, and so on how fast
    each of two processes was.
    """
    if hasattr(providers, "_get_local_constants"):
        none = providers._local_constants  # of no module, as long as nobody asked
        providers._get_local_constants = lambda: none
