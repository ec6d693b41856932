"""torch's number of CPU threads while a model computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Let torch use so many threads for a while; 0: as many as it uses now.

    Every model brings its own number, so that it computes the same beside another one as alone.
    """
    import torch

    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
