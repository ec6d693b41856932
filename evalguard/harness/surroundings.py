"""What lm-eval's code finds around it while it runs inside evalguard."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import lru_cache, partial

import numpy as np

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
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(_seeded_generators())
        stack.enter_context(_no_bars())
        stack.enter_context(_compiled_templates())
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
            f"{what}: {type(error).__name__}: {error}",
            hint="the task's YAML or its Python file is at fault; --debug shows where",
        ) from error


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
