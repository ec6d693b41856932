"""What lm-eval's code finds around it while it runs inside evalguard."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from evalguard.core.reports.findings import quote_message
from evalguard.core.settings import Value, digest_of
from evalguard.errors import EvalguardError, EvaluationError

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
    found: list[CodeType] = []
    _collecting.append(found)
    try:
        yield found
    finally:
        _collecting.remove(found)


_hooked = False
_collecting: list[list[CodeType]] = []


def _note_executed(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec" and _collecting and isinstance(arguments[0], CodeType):
        for found in _collecting:
            found.append(arguments[0])


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
