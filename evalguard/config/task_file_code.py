"""Code in lm-eval task files: what a task file, or a folder of them, could run if it were read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import yaml

from evalguard.config.local_paths import leads_outside

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


_CORE_TAG = "tag:yaml.org,2002:"
_SKIPPED = {"__pycache__", ".ipynb_checkpoints", ".git"}
MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 2000
_ENDINGS = (".yaml", ".yml")
# Keys by which lm-eval or datasets imports a module, fetches code, or reads templates elsewhere.
_CODE_KEYS = frozenset({"class", "hf_evaluate", "trust_remote_code", "use_prompt"})
# Metrics of lm-eval's own registry; any other name is looked up, and run, by `evaluate`.
_METRICS = frozenset({
    "acc", "acc_all", "acc_bytes", "acc_mutual_info", "acc_norm", "bits_per_byte", "bleu",
    "brier_score", "bypass", "byte_perplexity", "chrf", "chrf++", "exact_match", "f1",
    "likelihood", "mcc", "perplexity", "ter", "word_perplexity",
})  # fmt: skip
# What templates of tasks really call: methods of text, lists and mappings.
_METHODS = frozenset({
    "capitalize", "count", "endswith", "find", "get", "index", "items", "join", "keys", "lower",
    "lstrip", "replace", "rstrip", "rsplit", "split", "splitlines", "startswith", "strip",
    "title", "upper", "values",
})  # fmt: skip
# What templates may name beside the fields of a document.
_GLOBALS = frozenset({
    "caller", "cycler", "dict", "joiner", "kwargs", "lipsum", "namespace", "self", "super",
    "varargs",
})  # fmt: skip


def is_task_file(name: str) -> bool:
    """Whether lm-eval would take the name of a task for a file."""
    return name.endswith(_ENDINGS)


def find_task_code(path: Path, *, root: Path) -> str:
    """Return the first thing in task files that runs code or reads data from outside; "" if none.

    Looks at every YAML file of a folder, or at one file, and at the files they include. What cannot
    be read counts as code: nothing is known about it.

    Args:
        path: a folder of task files, or one file.
        root: the folder that data files may lie in; their relative paths start there.
    """
    queue = [path] if path.is_file() else sorted(islice(_yaml_files(path), MAX_FILES + 1))
    seen: set[Path] = set()
    while queue:
        if len(seen) + len(queue) > MAX_FILES:
            return f"{path} holds over {MAX_FILES} task files, too many to be looked through"
        file = queue.pop(0)
        if file in seen:
            continue
        seen.add(file)
        danger, included = _scan(file, root)
        if danger:
            return f"{file}{danger}"
        queue += included
    return ""


def _yaml_files(folder: Path) -> Iterator[Path]:
    visited: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        # Links in a circle: each folder once.
        folders[:] = [] if real in visited else [name for name in folders if name not in _SKIPPED]
        visited.add(real)
        yield from (Path(root, name) for name in names if is_task_file(name))


def _scan(path: Path, root: Path) -> tuple[str, list[Path]]:
    """Return what runs code in one file (":LINE: what") and the files that it includes."""
    try:
        if not path.is_file():
            return ": is not a file, so what it runs is not known", []
        if path.stat().st_size > MAX_BYTES:
            return ": is too large to be looked through", []
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return ": cannot be read, so what it runs is not known", []
    included: list[Path] = []
    for node, key in _nodes(tree):
        why = _why(node, key) or data_danger(node, key, root=root)
        if why:
            return f":{node.start_mark.line + 1}: {why}", []
        if key == "include" and isinstance(node, yaml.ScalarNode):
            if leads_outside(node.value, path.parent, root):
                return f":{node.start_mark.line + 1}: includes {node.value}, outside {root}", []
            included.append(path.parent / node.value)
    return "", included


def _nodes(root: yaml.Node | None) -> Iterator[tuple[yaml.Node, str]]:
    """Yield every node with the key that it stands under, once each."""
    stack = [(root, "")] if root is not None else []
    seen: set[tuple[int, str]] = set()
    while stack:
        node, key = stack.pop()
        if (id(node), key) in seen:
            continue
        seen.add((id(node), key))
        yield node, key
        if isinstance(node, yaml.SequenceNode):
            stack += [(item, key) for item in reversed(node.value)]
        elif isinstance(node, yaml.MappingNode):
            for key_node, value in reversed(node.value):
                stack += [(value, str(key_node.value)), (key_node, "")]


def _why(node: yaml.Node, key: str) -> str:
    if not node.tag.startswith(_CORE_TAG):
        return f"{node.tag} {node.value if isinstance(node, yaml.ScalarNode) else ''}".strip()
    if node.tag.startswith(_CORE_TAG + "python"):
        return f"a YAML tag that makes Python objects ({node.tag})"
    if not isinstance(node, yaml.ScalarNode):
        return f"'{key}' loads code" if key in _CODE_KEYS else ""
    text = str(node.value)
    if key in _CODE_KEYS and text.lower() not in ("false", "null", "~", ""):
        return f"'{key}' loads code"
    if key == "metric" and text not in _METRICS:
        return f"metric {text} is looked up outside lm-eval"
    return _template_code(text) if "{{" in text or "{%" in text else ""


def _template_code(template: str) -> str:
    """Return what a template does that could run code; "" for one that only formats a document.

    lm-eval renders templates without a sandbox, and a template runs code by calling what it
    reached through underscored attributes.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        tree = Environment().parse(template)
    except (TemplateSyntaxError, RecursionError):
        return "a template that cannot be read"
    for call in tree.find_all(nodes.Call):
        callee = call.node
        method = isinstance(callee, nodes.Getattr) and callee.attr in _METHODS
        if not (method or (isinstance(callee, nodes.Name) and callee.name == "range")):
            return "a template that calls functions"
    if any(name.name in _GLOBALS for name in tree.find_all(nodes.Name)):
        return "a template that reaches outside itself"
    names = [node.attr for node in tree.find_all(nodes.Getattr)]
    names += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    if any(name.startswith("_") or "__" in name for name in names):
        return "a template that reaches into Python objects"
    outside = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.CallBlock)
    if next(tree.find_all(outside), None) or any(
        node.name in ("attr", "pprint") for node in tree.find_all(nodes.Filter)
    ):
        return "a template that reaches outside itself"
    return ""
