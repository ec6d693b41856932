"""Where a task's documents come from: dataset, part, split and commit, as far as they are known."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value

if TYPE_CHECKING:
    from lm_eval.api.task import Task

# Builders of the datasets library that read files of one's own; no dataset of the hub.
_BUILDERS = frozenset(
    {
        "arrow", "audiofolder", "csv", "hdf5", "imagefolder", "json", "pandas", "parquet", "sql",
        "text", "videofolder", "webdataset", "xml",
    }
)  # fmt: skip
# A name on the hub, of a model or a dataset: with or without its owner.
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
# As the datasets library writes down what it downloaded.
_DOWNLOADED = re.compile(r"hf://datasets/([^@]+)@([0-9a-f]{40})/")


def describe_data(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return dataset, config and split of a task's configuration, {} for data of one's own."""
    path = config.get("dataset_path")
    if not isinstance(path, str) or path in _BUILDERS or not HUB_ID.fullmatch(path):
        return {}
    if os.path.isdir(path):
        return {}
    split = config.get("test_split") or config.get("validation_split")
    told = {"dataset": path, "config": config.get("dataset_name"), "split": split}
    return {name: str(value) for name, value in told.items() if value}


def read_task_data(task: Task) -> dict[str, Value]:
    """Return the same of a loaded task, with the commit of a dataset that was downloaded."""
    config = task.config
    names = ("dataset_path", "dataset_name", "test_split", "validation_split")
    found = describe_data({name: getattr(config, name, None) for name in names})
    data = getattr(task, "dataset", None)
    if not found or not isinstance(data, Mapping):
        return found
    info = getattr(data.get(str(found.get("split"))), "info", None)
    for url in getattr(info, "download_checksums", None) or ():
        downloaded = _DOWNLOADED.match(str(url))
        if downloaded:
            return {**found, "dataset": downloaded[1], "revision": downloaded[2]}
    return found
