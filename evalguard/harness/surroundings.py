"""What lm-eval's code finds around it while it runs inside evalguard."""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.findings import quote_message
from evalguard.core.settings import Value, digest_of
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.regular_file import open_regular

if TYPE_CHECKING:
    from lm_eval.api.task import Task

# lm-eval's own seeds of the two global generators (lm_eval.defaults): some tasks shuffle with them.
_RANDOM_SEED = 0
_NUMPY_SEED = 1234


@contextmanager
def lm_eval_surroundings() -> Iterator[None]:
    """Run lm-eval code with seeded generators, nothing on stdout, no bars, templates sandboxed.

    stdout belongs to our results (it may be one JSON document); what lm-eval or a task prints goes
    to stderr. The state of both generators is given back afterwards. lm-eval's warnings go where
    the application sends its logs, and nowhere if it does not log.
    """
    logger = logging.getLogger("lm_eval")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    # It tells of a line that it cannot read by a row of a block; find_broken_lines does better.
    logging.getLogger("datasets.packaged_modules.json.json").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(_seeded_generators())
        stack.enter_context(_no_bars())
        stack.enter_context(_compiled_templates())
        stack.enter_context(_data_files_by_state())
        yield


@contextmanager
def task_code(what: str) -> Iterator[None]:
    """Run code that belongs to a task; whatever it raises becomes one EvaluationError.

    Args:
        what: what cannot be done if the code fails, for the message.
    """
    try:
        yield
    except EvalguardError:
        raise
    except Exception as error:  # a task's code may raise anything
        raise EvaluationError(
            f"{what}: {type(error).__name__}",
            quotes=quote_message(error),
            hint="the task's YAML or its Python file is at fault; --debug shows where",
        ) from error


@contextmanager
def executed_code() -> Iterator[list[CodeType]]:
    """Collect the code of every module that is run inside, whoever imports it, and of ``exec``."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_note_executed)
        _hooked = True
    collected: list[CodeType] = []
    _collecting.append(collected)
    try:
        yield collected
    finally:
        _collecting.remove(collected)


_hooked = False
_collecting: list[list[CodeType]] = []


def _note_executed(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec" and _collecting and isinstance(arguments[0], CodeType):
        for codes in _collecting:
            codes.append(arguments[0])


@contextmanager
def _seeded_generators() -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(_RANDOM_SEED)
    np.random.seed(_NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def _no_bars() -> Iterator[None]:
    import datasets
    from lm_eval.api import task as task_module

    # build_all_requests has no argument that turns its bar off.
    bar, shown = task_module.tqdm, not datasets.are_progress_bars_disabled()
    task_module.tqdm = partial(bar, disable=True)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        task_module.tqdm = bar
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def _data_files_by_state() -> Iterator[None]:
    """Let datasets tell local files by more than the time that they were written at.

    It keeps what it has read of them under that time alone, which a copy keeps and anybody can set.
    Here what is read of local files has a folder for each state of theirs.
    """
    import datasets

    load = datasets.load_dataset

    def load_by_state(path: str, *words: Any, **named: Any) -> Any:
        # a dataset of the hub has its revision, and asking for its files would ask the hub again
        packaged = "/" not in path or Path(path).expanduser().exists()
        state = "" if words or not packaged else _state_of_files(path, named)
        if state:
            root = named.get("cache_dir") or datasets.config.HF_DATASETS_CACHE
            named = {**named, "cache_dir": str(Path(root) / f"local-{state}")}
        return load(path, *words, **named)

    datasets.load_dataset = load_by_state
    try:
        yield
    finally:
        datasets.load_dataset = load


# Arguments of load_dataset that its builder does not take.
_OF_LOADING = frozenset(
    {"split", "verification_mode", "keep_in_memory", "save_infos", "streaming", "num_proc"}
)


def _state_of_files(path: str, named: Mapping[str, Any]) -> str:
    """Digest of the states of all local files of a dataset; "" where it has none."""
    import datasets

    asked = {name: value for name, value in named.items() if name not in _OF_LOADING}
    try:
        builder = datasets.load_dataset_builder(path, **asked)
    except Exception:  # noqa: BLE001  loading it raises the same, and says so
        return ""
    states: list[Value] = []
    for split, files in sorted((builder.config.data_files or {}).items()):
        for file in files:
            with suppress(OSError, ValueError):  # one that is not on this machine
                now = os.stat(file)
                changed = [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
                states.append([str(split), str(file), *changed])
    return digest_of(states)[:16] if states else ""


@contextmanager
def _compiled_templates() -> Iterator[None]:
    """Keep compiled templates, which lm-eval compiles anew for every use; render in a sandbox.

    A template formats a document; lm-eval would also let it reach any Python object, so that a task
    file without a line of Python could run code.
    """
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval.utils import env

    compile_template = env.from_string
    sandbox = SandboxedEnvironment(
        loader=env.loader,
        undefined=env.undefined,
        keep_trailing_newline=env.keep_trailing_newline,
    )
    sandbox.filters = env.filters
    env.from_string = lru_cache(maxsize=256)(sandbox.from_string)
    try:
        yield
    finally:
        env.from_string = compile_template


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
    data = {"dataset": path, "config": config.get("dataset_name"), "split": split}
    return {name: str(value) for name, value in data.items() if value}


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
    faults = [(at, fault) for at, line in enumerate(lines, 1) if (fault := _fault_of(line))]
    if faults and _fault_of(content, of_line=False):
        yield from faults


def _fault_of(text: bytes, *, of_line: bool = True) -> str:
    """Why a line holds no JSON object, "" where it does or is blank; no words of it are told."""
    if not text.strip():
        return ""
    try:
        parsed = json.loads(text, object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{text[error.start]:02x}, column {error.start + 1})"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg}, column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if of_line and not isinstance(parsed, dict):
        return 'JSON, but no object: write {"field": value, ...}'
    return ""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field stands in it twice")
    return fields


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
    scoring = {name: _comparable(config.get(name)) for name in SCORING_OPTIONS}
    filters, metrics = (scoring.pop(name) for name in ("filter_list", "metric_list"))
    if isinstance(filters, list):
        scoring["filter_list"] = {
            str(entry.get("name")): entry.get("filter")
            for entry in filters
            if isinstance(entry, dict)
        }
    else:
        scoring["filter_list"] = {"none": [{"function": "take_first"}]}
    if isinstance(metrics, list):
        scoring["metric_list"] = {
            str(entry.get("metric")): {name: of for name, of in entry.items() if name != "metric"}
            for entry in metrics
            if isinstance(entry, dict)
        }
    return {name: value for name, value in scoring.items() if value is not None}


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
    described = describe_data({name: getattr(config, name, None) for name in names})
    data = getattr(task, "dataset", None)
    if not described or not isinstance(data, Mapping):
        return described
    info = getattr(data.get(str(described.get("split"))), "info", None)
    for url in getattr(info, "download_checksums", None) or ():
        downloaded = _DOWNLOADED.match(str(url))
        if downloaded:
            return {**described, "dataset": downloaded[1], "revision": downloaded[2]}
    return described
