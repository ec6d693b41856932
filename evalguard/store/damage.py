"""DamagedBlockError: what a kept file says of itself is not true."""

from __future__ import annotations


class DamagedBlockError(Exception):
    """A file is not the block that its place says; the message says in what way."""
