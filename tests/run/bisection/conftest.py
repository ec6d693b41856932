"""A planted model that the tests of this folder share, and the folder of benchmarks beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
for place in (Path(__file__).parent, Path(__file__).parents[1], Path(__file__).parents[3]):
    sys.path.insert(0, str(place))

if TYPE_CHECKING:
    from planted_world import PlantedWorld


@pytest.fixture(scope="session")
def planted_world(tmp_path_factory: pytest.TempPathFactory) -> PlantedWorld:
    """A Gemma 2 in small with two guilty settings among nine."""
    from planted_world import make_planted_world

    return make_planted_world(tmp_path_factory.mktemp("planted"))
