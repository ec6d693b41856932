"""Data of lm-eval task files: what a task would read that is not plain data of its own folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import yaml

# Builders of `datasets` that unpickle, run a query or a program, or connect to a server.
_BUILDERS = frozenset({
    "cache", "eval", "generator", "harbor", "iceberg", "pandas", "pickle", "spark", "sql",
    "webdataset",
})  # fmt: skip
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ARGUMENTS = frozenset({
    "column_names", "columns", "data_dir", "data_files", "delimiter", "encoding", "field",
    "header", "keep_linebreaks", "names", "quotechar", "revision", "sample_by", "sep", "split",
    "streaming", "trust_remote_code", "verification_mode",
})  # fmt: skip
_PATHS = frozenset({"data_dir", "data_files"})
_MOST_FILES = 10_000


def data_danger(node: yaml.Node, key: str, *, root: Path) -> str:
    """Return what a node of a task file would read that needs trust, "" for harmless data.

    Harmless are datasets of the hub, and JSON, CSV, parquet, Arrow and text files inside ``root``:
    whatever a task reads ends up in prompts and reports.

    Args:
        node: any node of the file; ``key`` is the key that it stands under.
        root: the folder in which relative paths start, and that data may not leave.
    """
    if key == "dataset_path" and isinstance(node, yaml.ScalarNode):
        return _path_danger(str(node.value), root)
    if key != "dataset_kwargs" or not isinstance(node, yaml.MappingNode):
        return ""
    for key_node, value in node.value:
        name = str(key_node.value)
        if name not in _ARGUMENTS:
            return f"dataset_kwargs.{name} is not known to be harmless"
        outside = [text for text in _texts(value) if name in _PATHS and _is_outside(text, root)]
        if outside:
            return f"{name} {outside[0]} lies outside {root}"
    return ""


def _path_danger(text: str, root: Path) -> str:
    if text in _BUILDERS or text.endswith(".py"):
        return f"dataset_path {text} can run code"
    if _is_outside(text, root) or not (_HUB_ID.fullmatch(text) or (root / text).exists()):
        return f"dataset_path {text} lies outside {root}" if text else ""
    return ""


def _texts(node: yaml.Node) -> Iterator[str]:
    """Yield the texts in a node, however deep; an alias that contains itself is followed once."""
    stack, seen = [node], set()
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, yaml.ScalarNode):
            yield str(current.value)
        elif isinstance(current, yaml.MappingNode):
            stack += [value for _, value in current.value]
        else:
            stack += current.value


def _is_outside(text: str, root: Path) -> bool:
    """Whether a path or pattern is a URL or leads out of ``root``, through a link for one."""
    if "://" in text or "::" in text or text.startswith("~"):
        return True
    if ".." in Path(text).parts:
        return True
    home = os.path.realpath(root)
    files = list(islice(_files(os.path.join(root, text)), _MOST_FILES + 1))
    inside = all(
        os.path.realpath(file) == home or os.path.realpath(file).startswith(home + os.sep)
        for file in (os.path.join(root, text), *files)
    )
    return not inside or len(files) > _MOST_FILES


def _files(pattern: str) -> Iterator[str]:
    """Yield what a path or a glob pattern stands for, folders with all that they hold."""
    for path in (pattern, *glob.iglob(pattern, recursive=True)):
        yield path
        for folder, folders, names in os.walk(path):
            yield from (os.path.join(folder, name) for name in (*folders, *names))
