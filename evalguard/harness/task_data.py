"""What a task's configuration says of its documents, of scoring and of sampling."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value
from evalguard.regular_file import open_regular

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


def find_broken_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the fault of each line of a JSON file that is no JSON object.

    None of a file that is JSON as a whole. 0 is the file, where it holds nothing.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as raw:
        content = gzip.GzipFile(fileobj=raw).read() if path.suffix == ".gz" else raw.read()
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not any(line.strip() for line in lines):
        yield 0, "it holds no documents"
        return
    found = [(at, fault) for at, line in enumerate(lines, 1) if (fault := _fault_of(line))]
    if found and _fault_of(content, of_line=False):
        yield from found


def _fault_of(text: bytes, *, of_line: bool = True) -> str:
    """Why a line holds no JSON object, "" where it does or is blank; no words of it are told."""
    if not text.strip():
        return ""
    try:
        found = json.loads(text, object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{text[error.start]:02x}, column {error.start + 1})"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg}, column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if of_line and not isinstance(found, dict):
        return 'JSON, but no object: write {"field": value, ...}'
    return ""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands in it twice")
    return found


# What of a task's configuration decides how a given answer is scored.
SCORING_OPTIONS = (
    "filter_list", "metric_list", "process_results", "doc_to_target", "doc_to_choice",
    "target_delimiter", "output_type", "repeats",
)  # fmt: skip
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe_scoring(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return how a task scores answers, in one form: filters and metrics by name, no defaults.

    Of a function there is what lm-eval records, its source text or its name.
    """
    told = {name: _comparable(config.get(name)) for name in SCORING_OPTIONS}
    filters, metrics = (told.pop(name) for name in ("filter_list", "metric_list"))
    if isinstance(filters, list):
        told["filter_list"] = {
            str(one.get("name")): one.get("filter") for one in filters if isinstance(one, dict)
        }
    else:
        told["filter_list"] = {"none": [{"function": "take_first"}]}
    if isinstance(metrics, list):
        told["metric_list"] = {
            str(one.get("metric")): {name: of for name, of in one.items() if name != "metric"}
            for one in metrics
            if isinstance(one, dict)
        }
    return {name: value for name, value in told.items() if value is not None}


def _comparable(value: Any) -> Value:
    """A value that two runs can be compared by: what is off or empty is as good as not there."""
    if isinstance(value, Mapping):
        inner = {str(name): _comparable(of) for name, of in value.items()}
        return {name: of for name, of in inner.items() if of not in (None, False, "", [], {})}
    if isinstance(value, (list, tuple)):
        return [_comparable(of) for of in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    name = getattr(value, "__name__", None)
    return f"<function {name}>" if name and callable(value) else _ADDRESS.sub("", str(value))


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
