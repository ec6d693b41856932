"""A Python command of a build, run as Python would run it, and what it reads written down.

Standard library only, and Python 3.10: a script in front of the command's own words::

    python watched_command.py TRACE FOLDERS PYTHON'S ARGUMENTS...

writes what the command reads to the file TRACE. FOLDERS is a list in JSON: the first one is the
command's own to work in, the others are digested already.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import json
import os
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalguard.conversion.observing import Observer


def _run(trace: str, folders: str, arguments: list[str]) -> None:
    observer = _load_observer()
    own, *inputs = json.loads(folders)
    observer.ignore([own])
    observer.ignore_model(inputs)
    atexit.register(_write, observer, trace, os.getpid())
    flag, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __spec__=None, __annotations__={})
    isolated = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not isolated:
        del sys.path[0]  # this file's
    sys.modules["__main__"] = main
    if flag == "-c":
        first, code = "", compile(rest[0], "<string>", "exec")
        sys.argv = ["-c", *rest[1:]]
    elif flag == "-m":
        first, code = os.getcwd(), None
        sys.argv = ["-m", *rest[1:]]
    else:
        first = os.path.dirname(os.path.realpath(flag))
        sys.argv = [flag, *rest]
        flag = os.path.abspath(flag)
        code = _script(flag)
        main.__dict__.update(__file__=flag, __cached__=None)
    if not isolated:
        sys.path.insert(0, first)
    observer.start()
    if code is not None:
        if flag != "-c":
            observer.note_file(flag)
        exec(code, main.__dict__)
        return
    import runpy

    runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]


def _load_observer() -> Observer:
    """The observer of the file beside this one; another interpreter may not have this package."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "observing.py")
    spec = importlib.util.spec_from_file_location("evalguard_observing", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    observer: Observer = module.Observer(whole=True)
    return observer


def _script(file: str) -> CodeType:
    with open(file, "rb") as opened:
        return compile(opened.read(), file, "exec")


def _write(observer: Observer, trace: str, process: int) -> None:
    if os.getpid() == process:
        told = observer.told()
        observer._busy.on = True
        with open(trace, "w", encoding="utf-8") as file:
            json.dump(told, file)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2], sys.argv[3:])
