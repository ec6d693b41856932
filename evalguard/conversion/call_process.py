"""The process in which a ``call`` recipe runs: one function, its inputs, one output path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypedDict

from evalguard.conversion.code import load_function
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError
from evalguard.plugins import recipe_origin


class CallJob(TypedDict):
    """What the building process is told on its standard input."""

    path: list[str]
    call: str
    folder: str
    inputs: dict[str, Value]
    output: str


def run(job: CallJob) -> None:
    """Call the recipe's function as ``function(**inputs, output=Path)``.

    The parent allowed the code to run before it started this process. Any exception ends the
    process with its traceback in the log.
    """
    try:
        function = load_function(job["call"], folder=job["folder"], allowed=True)
    except EvalguardError as error:
        origin = recipe_origin(job["call"])
        sys.exit(f"{error}\n{error.hint}" + (f"\nit is a recipe of {origin}" if origin else ""))
    function(**job["inputs"], output=Path(job["output"]))
