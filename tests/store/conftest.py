"""A disk that can really run full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disks import mounted_disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for 64 KiB."""
    with mounted_disk(tmp_path / "small", size="64k") as disk:
        yield disk
