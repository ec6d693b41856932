"""What other people's code reads is seen as it runs, and a change of any of it is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evalguard.conversion import watched_command
from evalguard.conversion.observed_reads import ObservedReads, package_versions

Change = Callable[[Path, dict[str, str]], object]

DRIVER = """
import json, sys
from evalguard.conversion.observing import Observer
observer = Observer()
observer.start()
from evalguard.conversion.code import load_function
load_function("hook.py:edit", folder=sys.argv[1], allowed=True)(None, 1)
told = observer.told()
observer._busy.on = True
json.dump(told, open(sys.argv[2], "w"))
"""


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def rewrite(path: str, text: str) -> Change:
    return lambda folder, _: write(folder, {path: text})


def variable(name: str, value: str) -> Change:
    return lambda _, environment: environment.update({name: value})


def watch(folder: Path, environment: Mapping[str, str], driver: str = DRIVER) -> ObservedReads:
    """Run a hook, watched, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", driver, str(folder), str(folder / "told.json")],
        env={**environment, "PYTHONPATH": os.pathsep.join(
            [str(folder / "outside"), *filter(None, sys.path)])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return ObservedReads.of(told, package_versions)


def hook(head: str, body: str = "pass") -> str:
    return f"{head}\n\n\ndef edit(model, value):\n    {body}\n"


HERE = "from pathlib import Path\nHERE = Path(__file__).parent\n"

# What a hook reads: (files, change).
SEEN: dict[str, tuple[dict[str, str], Change]] = {
    "its own text": ({"hook.py": hook("A = 1")}, rewrite("hook.py", hook("A = 2"))),
    "a module beside it": (
        {"hook.py": hook("import eg_beside"), "eg_beside.py": "A = 1\n"},
        rewrite("eg_beside.py", "A = 2\n"),
    ),
    "a package on PYTHONPATH, and what it imports": (
        {"hook.py": hook("import eg_pack"), "outside/eg_pack/__init__.py": "import eg_pack.inner",
         "outside/eg_pack/inner.py": "A = 1\n"},
        rewrite("outside/eg_pack/inner.py", "A = 2\n"),
    ),
    "a module that comes before the neighbour": (
        {"hook.py": hook("import eg_beside"), "eg_beside.py": "A = 1\n", "outside/other.py": ""},
        rewrite("outside/eg_beside.py", "A = 2\n"),
    ),
    "a module under a computed name": (
        {"hook.py": hook("import importlib\nimportlib.import_module('eg_' + 'x')"),
         "eg_x.py": "A = 1\n"},
        rewrite("eg_x.py", "A = 2\n"),
    ),
    "a module that is not there, and then is": (
        {"hook.py": hook("try:\n    import eg_maybe\nexcept ImportError:\n    pass")},
        rewrite("eg_maybe.py", "A = 2\n"),
    ),
    "a file, when it is called": (
        {"hook.py": hook(HERE, "open(HERE / 'factor.txt').read()"), "factor.txt": "1"},
        rewrite("factor.txt", "2"),
    ),
    # As pathlib of Python 3.10 takes it: a builtin in a class is no method.
    "whether a file is there, by a class that has taken os.stat for its own": (
        {"hook.py": hook(HERE + "import os\nclass Disk:\n    stat = os.stat\n",
                         "\n    ".join(["try:", "    Disk().stat(str(HERE / 'maybe'))",
                                        "except FileNotFoundError:", "    pass"]))},
        rewrite("maybe", "now it is"),
    ),
    "a file of settings": (
        {"hook.py": hook(HERE + "import configparser\nP = configparser.ConfigParser()\n"
                         "P.read([HERE / 'a.ini'])"), "a.ini": "[x]\na = 1\n"},
        rewrite("a.ini", "[x]\na = 2\n"),
    ),
    "a file that a helper reads": (
        {"hook.py": hook("import eg_helper"), "eg_helper.py": HERE + "import numpy\n"
         "A = numpy.fromfile(str(HERE / 'a.bin'), dtype='u1')", "a.bin": "1"},
        rewrite("a.bin", "2"),
    ),
    "tensors that compiled code reads": (
        {"hook.py": hook(HERE + "import numpy\nfrom safetensors.numpy import load_file, save_file\n"
                         "load_file(HERE / 'a.safetensors')"),
         "a.safetensors": '\x02\x00\x00\x00\x00\x00\x00\x00{}'},
        rewrite("a.safetensors", "other"),
    ),
    "a file that is not there, and then is": (
        {"hook.py": hook(HERE, "(HERE / 'flag').exists()")},
        rewrite("flag", ""),
    ),
    "the names in a folder": (
        {"hook.py": hook(HERE, "sorted((HERE / 'data').glob('*.txt'))"), "data/a.txt": ""},
        rewrite("data/b.txt", ""),
    ),
    "text that is run as code": (
        {"hook.py": hook(HERE + "exec((HERE / 'more.txt').read_text())"), "more.txt": "A = 1"},
        rewrite("more.txt", "A = 2"),
    ),
    "a script that is run": (
        {"hook.py": hook(HERE + "import runpy\nrunpy.run_path(str(HERE / 'more.py'))"),
         "more.py": "A = 1"},
        rewrite("more.py", "A = 2"),
    ),
    "an environment variable": (
        {"hook.py": hook("import os\nA = os.environ.get('EG_A', '1')")},
        variable("EG_A", "2"),
    ),
    "getenv under another name": (
        {"hook.py": hook("from os import getenv as got\nA = got('EG_A')")},
        variable("EG_A", "2"),
    ),
    "a variable that a library has taken away and put back": (
        {"hook.py": hook("import os\nfrom unittest.mock import patch\n"
                         "with patch.dict(os.environ):\n    pass\nA = os.environ['PATH']")},
        variable("PATH", "/nowhere"),
    ),
    "whether a variable is there": (
        {"hook.py": hook("import os\nA = 'EG_A' in os.environ")},
        variable("EG_A", ""),
    ),
    "a database": (
        {"hook.py": hook(HERE + "import sqlite3\nsqlite3.connect(HERE / 'a.db')"), "a.db": ""},
        rewrite("a.db", "x"),
    ),
}  # fmt: skip

REFUSED = {
    "another program": ("import subprocess\nsubprocess.run(['true'])", "starts another program"),
    "a shell": ("import os\nos.system('true')", "starts another program"),
    "a fork": ("import os\nif not os.fork():\n    os._exit(0)", "starts another program"),
    "the network": (
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), timeout=1)\n"
        "except OSError:\n    pass",
        "uses the network",
    ),
    "all variables": ("import os\nA = dict(os.environ)", "reads the environment as a whole"),
    "a library that reads past Python": ("import pandas", "uses pandas, which reads files past"),
    "a file that it changes": (
        HERE + "F = HERE / 'state.txt'\nA = F.read_text()\nF.write_text(A + 'x')",
        "state.txt changed while it was read",
    ),
}

UNSEEN: dict[str, tuple[str, Change]] = {
    "a file beside it that nobody reads": ("A = 1", rewrite("other.txt", "2")),
    "a module beside it that nobody imports": ("import json", rewrite("other.py", "2")),
    "a file that it wrote itself": (
        HERE + "(HERE / 'out.txt').write_text('1')\n(HERE / 'out.txt').read_text()",
        rewrite("out.txt", "2"),
    ),
    "a variable that it only sets": (
        "import os\nos.environ['EG_A'] = '1'\nos.environ['EG_A']",
        variable("EG_A", "2"),
    ),
    "a variable that it does not read": ("import os", variable("EG_A", "2")),
    "compiled files": ("import eg_n", rewrite("__pycache__/eg_n.cpython-311.pyc", "")),
}


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "EG_A"}


@pytest.mark.parametrize("what", SEEN)
def test_a_change_of_what_was_read_is_noticed(
    tmp_path: Path, environment: dict[str, str], what: str
) -> None:
    files, change = SEEN[what]
    write(tmp_path, files)
    reads = watch(tmp_path, environment)
    assert reads.reasons == ()
    assert reads.holds(environment, package_versions)
    assert ObservedReads.of(json.loads(json.dumps(reads.plain)), package_versions) == reads
    change(tmp_path, environment)
    assert not reads.holds(environment, package_versions)


@pytest.mark.parametrize("what", REFUSED)
def test_where_nobody_can_check_what_it_does_that_is_said(
    tmp_path: Path, environment: dict[str, str], what: str
) -> None:
    head, reason = REFUSED[what]
    write(tmp_path, {"hook.py": hook(head), "state.txt": ""})
    reads = watch(tmp_path, environment)
    assert reason in " ".join(reads.reasons)
    assert not reads.holds(environment, package_versions)


@pytest.mark.parametrize("what", UNSEEN)
def test_what_was_not_read_does_not_count(
    tmp_path: Path, environment: dict[str, str], what: str
) -> None:
    head, change = UNSEEN[what]
    write(tmp_path, {"hook.py": hook(head), "eg_n.py": ""})
    reads = watch(tmp_path, environment)
    change(tmp_path, environment)
    assert reads.reasons == ()
    assert reads.holds(environment, package_versions)


def test_an_edit_that_is_taken_back_is_the_same_again(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    files, change = SEEN["a module beside it"]
    write(tmp_path, files)
    before = watch(tmp_path, environment)
    change(tmp_path, environment)
    assert watch(tmp_path, environment).digest != before.digest
    write(tmp_path, files)
    assert watch(tmp_path, environment).digest == before.digest


def test_where_the_code_lies_says_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, SEEN["a module beside it"][0])
    found = {watch(tmp_path / name, environment).digest for name in ("a", "b")}
    assert len(found) == 1


def test_what_was_imported_before_the_watch_began_counts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    write(tmp_path, {"outside/sitecustomize.py": "A = 1\n", "hook.py": hook("A = 1")})
    reads = watch(tmp_path, environment)
    assert str(tmp_path / "outside/sitecustomize.py") in reads.files


def test_a_hook_beside_a_compiled_module_runs_and_the_module_counts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    import importlib.util

    compiled = importlib.util.find_spec("_decimal")
    if compiled is None or not compiled.origin:
        pytest.skip("this Python has no compiled module in a file")
    module = tmp_path / Path(compiled.origin).name.replace("_decimal", "_eg_decimal")
    head = (
        HERE + "import importlib.machinery, importlib.util\n"
        f"L = importlib.machinery.ExtensionFileLoader('_decimal', str(HERE / '{module.name}'))\n"
        "S = importlib.util.spec_from_loader('_decimal', L)\n"
        "importlib.util.module_from_spec(S)"
    )
    write(tmp_path, {"hook.py": hook(head)})
    module.write_bytes(Path(compiled.origin).read_bytes())
    reads = watch(tmp_path, environment)
    assert reads.reasons == ()
    assert str(module) in reads.files


SHOW = (
    "import json, os, sys\n"
    "if __name__ == '__main__':\n"
    "    main = sys.modules['__main__']\n"
    "    print(json.dumps([sys.argv, sys.path[:2], os.getcwd(), sys.flags.isolated,\n"
    "        sys.flags.no_site, globals() is vars(main), getattr(main, '__file__', None)]))\n"
    "    sys.exit(3)\n"
)


@pytest.mark.parametrize(
    "words",
    [
        ["eg_show.py", "a", "-b"],
        ["-m", "eg_show", "a"],
        ["-c", SHOW, "a"],
        ["-I", "eg_show.py"],
        ["-S", "eg_show.py"],
        ["-I", "-c", SHOW],
    ],
    ids=["a file", "a module", "a text", "isolated", "without site", "isolated text"],
)
def test_a_watched_command_sees_what_it_sees_unwatched(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path, {"eg_show.py": SHOW})
    flags = [word for word in words if word in ("-I", "-S")]
    rest = [word for word in words if word not in flags]
    trace, own = tmp_path / "trace.json", json.dumps([str(tmp_path / "work")])
    told = []
    for command in (words, [*flags, watched_command.__file__, str(trace), own, *rest]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        told.append(json.loads(done.stdout))
    assert told[0] == told[1]
    assert json.loads(trace.read_text())["reasons"] == []
