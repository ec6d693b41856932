"""The token of a run, under which it keeps what no later run may take for its own.

That is: scores of models, and builds, of which nobody has declared what their code reads. Worker
processes and child commands have the token of the run that started them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from evalguard.core.settings import Value
from evalguard.errors import UsageError

_VARIABLE = "EVALGUARD_THIS_RUN"
RUN_KEY = "run"
"""Where the code of an identity names the run that the scores are kept for."""
_used: set[str] = set()


def this_run() -> str:
    """The token of the run that this process belongs to, to keep something under it."""
    _used.add(token := os.environ.setdefault(_VARIABLE, secrets.token_hex(8)))
    return token


def keeps_for_itself() -> str:
    """The token of this run where it keeps something under it; "" where it does not."""
    token = current_run()
    return token if token in _used else ""


def current_run() -> str:
    """The token of the run that is going on; "" where there is none."""
    return os.environ.get(_VARIABLE, "")


@contextmanager
def run_scope() -> Iterator[None]:
    """Make what happens inside one run, or a part of the run that is going on already."""
    if _VARIABLE in os.environ:
        yield
        return
    os.environ[_VARIABLE] = secrets.token_hex(8)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def go_on_with(token: str) -> None:
    """Make this run go on with an earlier one, whose scores and builds count for it.

    Raises:
        UsageError: that is no token.
    """
    if not re.fullmatch(r"[0-9a-f]{16}", token):
        raise UsageError(
            f"--unchanged-since {token}: that is no run",
            hint="a run that is interrupted names its own: sixteen digits, 0-9 and a-f",
        )
    os.environ[_VARIABLE] = token


def run_of(identity: Mapping[str, Value] | None) -> str:
    """The run that scores of a model are kept for; "": they are for every run, or not kept."""
    code = (identity or {}).get("code")
    token = code.get(RUN_KEY) if isinstance(code, Mapping) else None
    return token if isinstance(token, str) else ""


def without_run(identity: Mapping[str, Value]) -> dict[str, Value]:
    """An identity without the run, as far as it tells one model from another for people."""
    code = identity.get("code")
    if not isinstance(code, dict) or RUN_KEY not in code:
        return dict(identity)
    return {**identity, "code": {name: value for name, value in code.items() if name != RUN_KEY}}
