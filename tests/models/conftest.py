"""Models that tests of several files score."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["llama", "gemma2"])
def folder(request: pytest.FixtureRequest, tiny_llama: Path, tiny_gemma2: Path) -> Path:
    """One tiny model after the other."""
    return tiny_llama if request.param == "llama" else tiny_gemma2
