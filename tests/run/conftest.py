"""Tasks of the small world; no model is loaded here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_world import write_tasks

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("pipeline") / "tasks")
