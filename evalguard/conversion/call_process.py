"""The process in which a ``call`` recipe runs: one function, its inputs, one output path."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from evalguard.conversion.user_functions import load_function
from evalguard.core.settings import Value
from evalguard.errors import BuildError, EvalguardError, nearest
from evalguard.plugins import recipe_origin


class CallJob(TypedDict):
    """What the building process is told on its standard input."""

    path: list[str]
    call: str
    folder: str
    inputs: dict[str, Value]
    output: str
    refusal: str


def run(job: CallJob) -> None:
    """Call the recipe's function as ``function(**inputs, output=Path)``.

    The parent allowed the code to run before it started this process. evalguard's own errors end
    the process with their words in the log, and in the file ``refusal`` without what libraries have
    said before; any other exception with its traceback.
    """
    inputs = {**job["inputs"], "output": Path(job["output"])}
    try:
        function = load_function(job["call"], folder=job["folder"], allowed=True)
        _check_names(function, job["call"], inputs)
        function(**inputs)
    except EvalguardError as error:
        origin = recipe_origin(job["call"])
        lines = (str(error), error.hint, f"it is a recipe of {origin}" if origin else "")
        words = "\n".join(line for line in lines if line)
        Path(job["refusal"]).write_text(words, encoding="utf-8")
        sys.exit(words)


def _check_names(function: Callable[..., object], call: str, inputs: Mapping[str, object]) -> None:
    """Refuse inputs that the function does not have, and those that it lacks.

    Raises:
        BuildError: naming them.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(**inputs)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "output"]
        wrong = next((name for name in inputs if name not in signature.parameters), "")
        raise BuildError(
            f"recipe {call}: {error}{nearest(wrong, names)}",
            hint=f"its inputs: {', '.join(names) or 'none'}",
        ) from error
