"""Scores of a model that runs code of others: for one run, or by what is declared.

The first table holds ways in which a hook may read something, each with a change of it; that the
hook's value really changes is tested with it. Whatever the way, no key of one run is another run's.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evalguard import start_up
from evalguard.cli.main import main
from evalguard.conversion import installed_packages
from evalguard.conversion.planning import plan_conversion
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import BuildRecipe, Setting, Target, Variant, digest_of
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.foreign_code import digest_foreign_code
from evalguard.engine.loading.known_models import KnownModels, digest_code, digest_weights
from evalguard.engine.run_context import scored_anew
from evalguard.errors import Interrupted
from evalguard.run_token import RUN_KEY, go_on_with, run_of, run_scope, this_run
from evalguard.store.cache_folder import forget_old_runs, write_description

Change = Callable[[Path, pytest.MonkeyPatch], object]


def write(name: str, text: str | bytes) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = text.encode() if isinstance(text, str) else text
        (folder / name).write_bytes(data)

    return change


def same_size_and_time(name: str, text: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        before = (folder / name).stat()
        assert len(text) == before.st_size
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


def exchanged(one: str, other: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        texts = [(folder / name).read_bytes() for name in (one, other)]
        (folder / one).write_bytes(texts[1])
        (folder / other).write_bytes(texts[0])

    return change


def pointed(name: str, to: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(to)

    return change


def renamed(name: str, to: str) -> Change:
    return lambda folder, _: (folder / name).rename(folder / to)


def zipped(name: str, inner: str, text: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        with zipfile.ZipFile(folder / name, "w") as packed:
            packed.writestr(inner, text)

    return change


def in_sqlite(value: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        with sqlite3.connect(folder / "data/base.sqlite") as base:
            base.execute("create table if not exists t (a)")
            base.execute("delete from t")
            base.execute("insert into t values (?)", (value,))
        base.close()

    return change


def variable(name: str, value: str) -> Change:
    return lambda _, patch: patch.setenv(name, value)


def elsewhere(text: str) -> Change:
    return lambda folder, _: (Path("/dev/shm") / f"eg-{folder.parent.name}").write_text(text)


TEXT = write("data/a.txt", "2")
# Of every way: what the hook's VALUE is, and a change. data/a.txt holds 1, data/other/a.txt 7.
READS: dict[str, tuple[str, Change]] = {
    "open": ("VALUE = open(D + 'a.txt').read()", TEXT),
    "open in bytes": ("VALUE = open(D + 'a.txt', 'rb').read()", TEXT),
    "open to append, and read": (
        "f = open(D + 'a.txt', 'a+'); f.seek(0); VALUE = f.read(); f.close()", TEXT),
    "open to update": ("f = open(D + 'a.txt', 'r+'); VALUE = f.read(); f.close()", TEXT),
    "io.open": ("import io; VALUE = io.open(D + 'a.txt').read()", TEXT),
    "io.FileIO": ("import io; VALUE = io.FileIO(D + 'a.txt').read()", TEXT),
    "os.open": ("import os; f = os.open(D + 'a.txt', 0); VALUE = os.read(f, 9); os.close(f)", TEXT),
    "os.open beside a folder": (
        "import os; d = os.open(D, 0); f = os.open('a.txt', 0, dir_fd=d); VALUE = os.read(f, 9);"
        " os.close(f); os.close(d)", TEXT),
    "pathlib": ("import pathlib; VALUE = pathlib.Path(D, 'a.txt').read_text()", TEXT),
    "codecs": ("import codecs; VALUE = codecs.open(D + 'a.txt').read()", TEXT),
    "fileinput": ("import fileinput; VALUE = list(fileinput.input(D + 'a.txt'))", TEXT),
    "shutil": (
        "import shutil; shutil.copy(D + 'a.txt', D + '../copy.txt');"
        " VALUE = open(D + '../copy.txt').read()", TEXT),
    "mmap": (
        "import mmap; f = open(D + 'a.txt', 'r+b'); VALUE = mmap.mmap(f.fileno(), 0)[:]; f.close()",
        TEXT),
    "a reader in C": (
        "import ctypes; c = ctypes.CDLL(None); b = ctypes.create_string_buffer(9);"
        " f = c.open((D + 'a.txt').encode(), 0); c.read(f, b, 8); c.close(f); VALUE = b.value",
        TEXT),
    "numpy": ("import numpy; VALUE = numpy.fromfile(D + 'a.txt', 'u1').tolist()", TEXT),
    "numpy's memory map": (
        "import numpy; VALUE = numpy.memmap(D + 'a.txt', 'u1', 'r').tolist()", TEXT),
    "a thread": (
        "import threading; v = []\nt = threading.Thread(target=lambda:"
        " v.append(open(D + 'a.txt').read())); t.start(); t.join(); VALUE = v[0]", TEXT),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "VALUE = list(P(2).map(lambda n: open(D + n).read(), ['a.txt']))", TEXT),
    "a program": (
        "import subprocess; VALUE = subprocess.run(['cat', D + 'a.txt'], capture_output=True,"
        " check=True).stdout", TEXT),
    "a shell": ("import os; p = os.popen('cat ' + D + 'a.txt'); VALUE = p.read(); p.close()", TEXT),
    "a file of its size, time and inode": (
        "VALUE = open(D + 'a.txt').read()", same_size_and_time("data/a.txt", "2")),
    "files of one name, exchanged": (
        "VALUE = open(D + 'a.txt').read()", exchanged("data/a.txt", "data/other/a.txt")),
    "a hidden file": ("VALUE = open(D + '.hidden').read()", write("data/.hidden", "2")),
    "a file in a hidden folder": ("VALUE = open(D + '.h/a').read()", write("data/.h/a", "2")),
    "where a link leads to": ("VALUE = open(D + 'link').read()",
                              pointed("data/link", "other/a.txt")),
    "a link, read": ("import os; VALUE = os.readlink(D + 'link')",
                     pointed("data/link", "other/a.txt")),
    "a hard link": ("VALUE = open(D + 'hard').read()", TEXT),
    "names in a folder": ("import os; VALUE = os.listdir(D)", write("data/new", "")),
    "names in a tree": ("import os; VALUE = list(os.walk(D))", write("data/other/new", "")),
    "a pattern": ("import glob; VALUE = glob.glob(D + '*.txt')", write("data/b.txt", "")),
    "an empty folder": ("import os; VALUE = os.path.isdir(D + 'sub')", write("data/sub/.x", "")),
    "what a file is called": ("import os; VALUE = os.listdir(D + 'other')",
                              renamed("data/other/a.txt", "data/other/b.txt")),
    "whether a file is there": ("import os; VALUE = os.path.exists(D + 'new')",
                                write("data/new", "")),
    "how large a file is": ("import os; VALUE = os.path.getsize(D + 'a.txt')",
                            write("data/a.txt", "22")),
    "sqlite": (
        "import sqlite3; VALUE = sqlite3.connect(D + 'base.sqlite').execute('select a from t')"
        ".fetchall()", in_sqlite("2")),
    "sqlite by URI": (
        "import sqlite3; VALUE = sqlite3.connect(f'file:{D}base.sqlite?mode=ro', uri=True)"
        ".execute('select a from t').fetchall()", in_sqlite("2")),
    "a zip file": ("import zipfile; VALUE = zipfile.ZipFile(D + 'a.zip').read('eg_zip.py')",
                   zipped("data/a.zip", "eg_zip.py", "VALUE = 2")),
    "a module of a zip file on the path": (
        "import sys, importlib; sys.path.insert(0, D + 'a.zip'); importlib.invalidate_caches()\n"
        "import zipimport; VALUE = zipimport.zipimporter(D + 'a.zip').get_source('eg_zip')",
        zipped("data/a.zip", "eg_zip.py", "VALUE = 2")),
    "a script, run": ("import runpy; VALUE = runpy.run_path(D + 's.py')['VALUE']",
                      write("data/s.py", "VALUE = 2")),
    "a text, executed": ("g = {}; exec(open(D + 's.py').read(), g); VALUE = g['VALUE']",
                         write("data/s.py", "VALUE = 2")),
    "JSON": ("import json; VALUE = json.load(open(D + 'a.txt'))", TEXT),
    "YAML": ("import yaml; VALUE = yaml.safe_load(open(D + 'a.txt'))", TEXT),
    "pickle": ("import pickle; VALUE = pickle.load(open(D + 'a.pkl', 'rb'))",
               write("data/a.pkl", b"I2\n.")),
    "shared memory": ("import os; VALUE = open(SHM).read()", elsewhere("2")),
    "a variable": ("import os; VALUE = os.environ['EG_V']", variable("EG_V", "2")),
    "a variable by getenv": ("import os; VALUE = os.getenv('EG_V')", variable("EG_V", "2")),
    "all variables": ("import os; VALUE = len(os.environ)", variable("EG_W", "2")),
    "the home folder": ("import os; VALUE = os.path.expanduser('~')", variable("HOME", "/eg")),
    "the working folder": ("import os; VALUE = os.getcwd()",
                           lambda folder, patch: patch.chdir(folder)),
    "words of the command": ("import sys; VALUE = sys.argv",
                             lambda _, patch: patch.setattr(sys, "argv", ["eg"])),
    "the network": (
        "import socket; VALUE = socket.gethostbyname('eg')",
        lambda _, patch: patch.setattr("socket.gethostbyname", lambda _: "2")),
    "the host": ("import socket; VALUE = socket.gethostname()",
                 lambda _, patch: patch.setattr("socket.gethostname", lambda: "eg")),
    "the time": ("import time; VALUE = time.time_ns()", lambda *_: None),
    "chance": ("import os; VALUE = os.urandom(8)", lambda *_: None),
    "a library's attribute": ("import numpy; VALUE = numpy.EG",
                              lambda _, patch: patch.setattr("numpy.EG", 2, raising=False)),
}  # fmt: skip

# Of these nothing lies in the folder of data: what declares inputs can't declare them.
OUTSIDE = {
    "shared memory", "a variable", "a variable by getenv", "all variables", "the home folder",
    "the working folder", "words of the command", "the network", "the host", "the time", "chance",
    "a library's attribute",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A guard file's folder with a hook, what it reads, and no run going on."""
    monkeypatch.delenv("EVALGUARD_THIS_RUN", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("EG_V", "1")
    monkeypatch.setattr("socket.gethostbyname", lambda _: "1")
    monkeypatch.setattr("numpy.EG", 1, raising=False)
    here = tmp_path / "guard"
    files = {
        "code/hook.py": "def edit(model, value): ...\n", "code/deep/beside.py": "A = 1\n",
        "data/a.txt": "1", "data/other/a.txt": "7", "data/.hidden": "1", "data/.h/a": "1",
        "data/s.py": "VALUE = 1", "data/a.pkl": "I1\n.",
        "model/config.json": "{}", "model/model.safetensors": "weights",
    }  # fmt: skip
    for name, text in files.items():
        write(name, text)(here, monkeypatch)
    (here / "data/link").symlink_to("a.txt")
    os.link(here / "data/a.txt", here / "data/hard")
    in_sqlite("1")(here, monkeypatch)
    zipped("data/a.zip", "eg_zip.py", "VALUE = 1")(here, monkeypatch)
    elsewhere("1")(here, monkeypatch)
    yield here
    (Path("/dev/shm") / f"eg-{here.parent.name}").unlink()


def hooked(folder: Path, *inputs: str, target: str = "call:code/hook.py:edit") -> Variant:
    setting = Setting(name="edit", reference=1, candidate=2, target=Target.parse(target))
    return Variant(
        name="m", model="hf", model_args={"pretrained": str(folder / "model")},
        settings=(setting,), assignment={"edit": 2}, code_folder=str(folder), allow_code=True,
        inputs={name: str(folder / name) for name in inputs} if inputs else None,
    )  # fmt: skip


def declared(folder: Path, *inputs: str, **of: str) -> Variant:
    return replace(hooked(folder, **of), inputs={name: str(folder / name) for name in inputs})


def key(variant: Variant) -> str:
    """What stands for the code of others in the keys of a run of its own."""
    with run_scope():
        return digest_of(digest_foreign_code(variant, plan_conversion(variant)))


def value(folder: Path, body: str) -> object:
    head = f"D = {str(folder / 'data')!r} + '/'\nSHM = '/dev/shm/eg-{folder.parent.name}'\n"
    names: dict[str, object] = {}
    exec(head + body, names)
    return names["VALUE"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("way", READS)
def test_whatever_code_reads_no_run_takes_another_runs_scores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    body, change = READS[way]
    (folder / "code/hook.py").write_text(body)
    variant = hooked(folder)
    before, key_before = value(folder, body), key(variant)
    change(folder, monkeypatch)
    assert value(folder, body) != before, "the change changes what is read"
    assert key(variant) != key_before


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("way", sorted(READS.keys() - OUTSIDE))
def test_what_is_declared_is_scored_anew_where_it_changed_and_found_again_where_it_did_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    body, change = READS[way]
    (folder / "code/hook.py").write_text(body)
    variant = declared(folder, "data")
    value(folder, body)
    shutil.copytree(folder / "data", folder / "as it was", symlinks=True)
    first = key(variant)
    assert key(variant) == first
    change(folder, monkeypatch)
    assert key(variant) != first
    shutil.rmtree(folder / "data")
    (folder / "as it was").rename(folder / "data")
    assert key(variant) == first, "an edit that is taken back finds its scores"


# Code itself, with inputs: []: a change, and whether it counts.
CODE: dict[str, tuple[Change, bool]] = {
    "the hook": (write("code/hook.py", "def edit(model, value): pass\n"), True),
    "the hook, of its size and time": (
        same_size_and_time("code/hook.py", "def edit(model, valve): ...\n"), True),
    "a module beside it": (write("code/deep/beside.py", "A = 2\n"), True),
    "a new module beside it": (write("code/other.py", ""), True),
    "modules of one name, exchanged": (exchanged("code/deep/beside.py", "code/hook.py"), True),
    "a compiled module": (write("code/fast.so", "elf"), True),
    "source of a kernel": (write("code/kernel.cu", "__global__"), True),
    "a module on PYTHONPATH": (write("outside/eg_far.py", "A = 2\n"), True),
    "a zip file on PYTHONPATH": (zipped("outside.zip", "eg_zip.py", "A = 2\n"), True),
    "what Python compiled": (write("code/__pycache__/hook.pyc", "code"), False),
    "a text": (write("code/README.md", "nobody reads this"), False),
    "a report": (write("code/reports/1/result.json", "{}"), False),
    "history of git": (write("code/.git/HEAD", "ref"), False),
    "a cache beside it": (write("code/cache/builds/1/modeling.py", "A = 2"), False),
    "an environment beside it": (write("code/venv/lib/a.py", ""), False),
    "data that nobody declared": (write("data/a.txt", "2"), False),
}  # fmt: skip


@pytest.mark.parametrize("what", CODE)
def test_code_counts_by_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, counts = CODE[what]
    write("outside/eg_far.py", "A = 1\n")(folder, monkeypatch)
    zipped("outside.zip", "eg_zip.py", "A = 1\n")(folder, monkeypatch)
    write("code/venv/pyvenv.cfg", "")(folder, monkeypatch)
    write("code/cache/facts/v1/models/1.json", "")(folder, monkeypatch)
    path = f"{folder}/outside{os.pathsep}{folder}/outside.zip"
    monkeypatch.setenv("PYTHONPATH", path)
    start_up.list_start_up_files.cache_clear()
    variant = declared(folder)
    first = key(variant)
    change(folder, monkeypatch)
    assert (key(variant) != first) == counts
    start_up.list_start_up_files.cache_clear()


def test_a_function_of_a_module_counts_by_its_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("eg_pkg/__init__.py", "")(folder, monkeypatch)
    write("eg_pkg/mod.py", "def edit(model, value): ...\n")(folder, monkeypatch)
    variant = declared(folder, target="call:eg_pkg.mod:edit")
    first = key(variant)
    write("eg_pkg/deep/beside.py", "A = 1\n")(folder, monkeypatch)
    second = key(variant)
    write("code/deep/beside.py", "A = 2\n")(folder, monkeypatch)
    assert first != second == key(variant)


def test_an_input_counts_by_the_path_that_is_written_and_not_by_where_it_lies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = key(declared(folder, "data/a.txt", "data/other/a.txt"))
    exchanged("data/a.txt", "data/other/a.txt")(folder, monkeypatch)
    assert key(declared(folder, "data/a.txt", "data/other/a.txt")) != first
    exchanged("data/a.txt", "data/other/a.txt")(folder, monkeypatch)
    shutil.copytree(folder, folder.parent / "moved", symlinks=True)
    assert key(declared(folder.parent / "moved", "data/a.txt", "data/other/a.txt")) == first


def test_all_that_belongs_to_one_run_shares_and_a_later_one_only_where_somebody_says_so(
    folder: Path,
) -> None:
    variant = hooked(folder)
    plan = plan_conversion(variant)
    with run_scope():
        token, first = this_run(), digest_foreign_code(variant, plan)
        with run_scope():  # a part of it: a bisection after the verdict, a pair of a night
            assert digest_foreign_code(variant, plan) == first
    assert run_of({"code": first}) == token
    with run_scope():
        assert digest_foreign_code(variant, plan) != first
        go_on_with(token)
        assert digest_foreign_code(variant, plan) == first


def test_models_without_such_code_are_known_by_every_run(folder: Path) -> None:
    variant = replace(hooked(folder), settings=(), assignment={})
    with run_scope():
        first = digest_code(variant, plan_conversion(variant))
    with run_scope():
        assert digest_code(variant, plan_conversion(variant)) == first
    assert RUN_KEY not in first


def test_kernels_of_the_hub_are_for_one_run_whatever_is_declared(folder: Path) -> None:
    variant = declared(folder)
    variant = replace(variant, model_args={**variant.model_args, "use_kernels": True})
    assert key(variant) != key(variant)


def test_code_of_a_checkpoint_counts_with_its_files_and_that_of_another_folder_with_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"auto_map": {"AutoModel": f"{folder}/code--hook.Own"}}
    write("model/config.json", json.dumps(named))(folder, monkeypatch)
    arguments = {"pretrained": str(folder / "model")}
    variant = Variant(name="m", model="hf", model_args=arguments, trust_remote_code=True, inputs={})
    assert key(replace(variant, inputs=None)) != key(replace(variant, inputs=None))
    first, weights = key(variant), digest_weights(variant, arguments)
    write("code/deep/beside.py", "A = 2\n")(folder, monkeypatch)
    assert key(variant) != first
    write("model/modeling_own.py", "A = 2\n")(folder, monkeypatch)
    assert digest_weights(variant, arguments) != weights


# What Python starts by itself: a world, and whether code of others is in it.
RECORDED = "import os; eg = 1\n"
STARTED: dict[str, tuple[dict[str, str], bool]] = {
    "nothing": ({}, False),
    "sitecustomize": ({"sitecustomize.py": "A = 1"}, True),
    "a package sitecustomize": ({"sitecustomize/__init__.py": "A = 1"}, True),
    "a line of a path file": ({"eg.pth": "import eg_hook\n"}, True),
    "a line that reads a file": ({"eg.pth": "import os; exec(open('/eg').read())\n"}, True),
    "a path file that was recorded": ({"eg_recorded.pth": RECORDED}, False),
    "one that was edited since": ({"eg_recorded.pth": "import os; eg = 2\n"}, True),
    "a path file of paths": ({"eg.pth": "/some/folder\n# a comment\n"}, False),
    "what virtualenv writes": ({"_virtualenv.pth": "import _virtualenv",
                                "_virtualenv.py": "A = 1"}, False),
    "what setuptools writes": (
        {"distutils-precedence.pth": "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; a = 1"}, False),
    "a namespace of an egg": (
        {"eg-nspkg.pth": "import sys, types, os;has_mfs = sys.version_info > (3, 5)"}, False),
    "a module in place of Python's own": ({"random.py": "A = 1"}, True),
    "a package in place of Python's own": ({"json/__init__.py": "A = 1"}, True),
    "a module of another name": ({"eg_random.py": "A = 1"}, False),
}  # fmt: skip


@pytest.mark.parametrize("what", STARTED)
def test_what_python_starts_by_itself_is_code_of_others_unless_an_installer_recorded_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    files, foreign = STARTED[what]
    digest = base64.urlsafe_b64encode(hashlib.sha256(RECORDED.encode()).digest()).decode()
    record = f"eg_recorded.pth,sha256={digest.rstrip('=')},{len(RECORDED)}\n"
    for name, text in {"eg-1.dist-info/RECORD": record, **files}.items():
        write(name, text)(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start_up.list_start_up_files.cache_clear()
    found = start_up.list_start_up_files()
    start_up.list_start_up_files.cache_clear()
    assert bool(found) == foreign, found


# An installed package: a change of it, and whether it counts.
PACKAGE: dict[str, tuple[Change, bool]] = {
    "a module": (write("eg_lib/deep/m.py", "A = 2\n"), True),
    "a module, of its size and time": (same_size_and_time("eg_lib/deep/m.py", "A = 2\n"), True),
    "data": (write("eg_lib/table.json", "[2]"), True),
    "modules of one name, exchanged": (exchanged("eg_lib/deep/m.py", "eg_lib/m.py"), True),
    "a module that is gone": (lambda folder, _: (folder / "eg_lib/m.py").unlink(), True),
    "a compiled module in place of one": (write("eg_lib/m.so", "elf"), True),
    "another version": (renamed("eg_lib-1.dist-info", "eg_lib-2.dist-info"), True),
    "what Python compiled": (write("eg_lib/__pycache__/m.pyc", "code"), False),
    "types": (write("eg_lib/m.pyi", "A: int"), False),
    "times alone": (lambda folder, _: os.utime(folder / "eg_lib/m.py"), False),
    "another package": (write("eg_far/m.py", "A = 2\n"), False),
}


@pytest.fixture
def forget_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    def forget() -> None:
        installed_packages._read_packages.clear()
        installed_packages._owners.cache_clear()
        installed_packages._all_files.cache_clear()

    before = dict(installed_packages._read_packages)
    yield forget
    forget()
    installed_packages._read_packages.update(before)


@pytest.mark.parametrize(
    ("what", "recorded"),
    [(name, True) for name in PACKAGE]
    # an editable one, by its code alone
    + [(name, False) for name in PACKAGE if name not in ("another version", "data")],
)
def test_a_package_counts_by_its_version_and_by_what_is_not_as_recorded(
    what: str,
    recorded: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forget_packages: Callable[[], None],
) -> None:
    change, counts = PACKAGE[what]
    texts = {
        "eg_lib/__init__.py": "", "eg_lib/m.py": "A = 3\n", "eg_lib/deep/m.py": "A = 1\n",
        "eg_lib/table.json": "[1]",
    }  # fmt: skip
    lines = ["eg_lib/m.pyi,,\n"]
    for name, text in texts.items():
        write(name, text)(tmp_path, monkeypatch)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        lines.append(f"{name},sha256={digest.rstrip('=')},{len(text)}\n")
    if recorded:
        write("eg_lib-1.dist-info/RECORD", "".join(lines))(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest_now() -> str:
        forget_packages()
        return installed_packages.digest_packages(("eg_lib",))["package eg_lib"]

    first = digest_now()
    assert (first == "eg_lib-1.dist-info as recorded") == recorded
    change(tmp_path, monkeypatch)
    assert (digest_now() != first) == counts


def test_a_copy_that_another_package_brings_and_puts_in_front_is_not_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget_packages: Callable[[], None]
) -> None:
    for name, text in {
        "eg_lib/__init__.py": "", "eg_lib-1.dist-info/RECORD": "eg_lib/__init__.py,,\n",
        "carrier/theirs/eg_lib/__init__.py": "A = 1\n", "carrier/theirs/only/__init__.py": "",
        "carrier-1.dist-info/RECORD": "carrier/theirs/eg_lib/__init__.py,,\n",
        "carrier/theirs/eg_lib-1.dist-info/RECORD": "eg_lib/__init__.py,,\n",
        "carrier/theirs/only-1.dist-info/RECORD": "only/__init__.py,,\n",
    }.items():  # fmt: skip
        write(name, text)(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_packages()
    before = installed_packages.digest_packages(("eg_lib",))
    assert before == {"package eg_lib": "eg_lib-1.dist-info as recorded"}
    all_before = installed_packages.digest_environment()
    monkeypatch.syspath_prepend(str(tmp_path / "carrier" / "theirs"))
    importlib.import_module("eg_lib")
    forget_packages()
    assert installed_packages.digest_packages(("eg_lib",)) == before
    assert installed_packages.digest_environment() == all_before
    assert installed_packages.digest_packages(("only",))
    monkeypatch.delitem(sys.modules, "eg_lib")


@pytest.mark.slow
def test_a_process_that_has_imported_ray_digests_packages_as_any_other() -> None:
    pytest.importorskip("ray")
    lines = (
        "from evalguard.conversion.installed_packages import digest_environment",
        "print(digest_environment())",
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True
        ).stdout
        for code in (lines, ("import ray", *lines))
    ]
    assert told[0] == told[1]


def test_runs_that_did_not_finish_are_named_by_the_next_one(folder: Path) -> None:
    variant, cache = hooked(folder), folder / "cache"

    def unfinished() -> tuple[KnownModels, tuple[str, ...]]:
        models = KnownModels.kept_in(cache)
        known = models.of(variant, ScoringPolicy(), worker=True)
        assert known is not None
        return models, known.unfinished

    with run_scope():
        assert unfinished()[1] == ()
        assert unfinished()[1] == (), "of the same run there is nothing to say"
        killed = this_run()
    with run_scope():
        assert unfinished()[1] == (killed,)
        stopped = this_run()
    with run_scope():
        assert unfinished()[1] == (stopped, killed), "the one that was stopped hides no other"
    with run_scope():
        go_on_with(killed)
        models, found = unfinished()
        assert found == (), "nor is another named to who goes on from one"
        models.finish()
    with run_scope():
        assert unfinished()[1] == ()


def test_ctrl_c_names_the_option_that_goes_on_where_scores_are_for_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EVALGUARD_THIS_RUN", raising=False)

    def hint() -> str:
        with pytest.raises(Interrupted) as stopped, interruptible("loading"):
            raise KeyboardInterrupt
        return stopped.value.hint

    with run_scope():
        assert "the same command goes on from there" in hint()
        assert "--unchanged-since" not in hint()
        assert f"with --unchanged-since {this_run()}" in hint()


def test_the_option_takes_what_a_run_is_called_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVALGUARD_THIS_RUN", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--unchanged-since", "yesterday", "--base", "a", "--cand", "b"])
    assert ended.value.code == 2
    assert "--unchanged-since yesterday: that is no run" in capsys.readouterr().err
    assert "EVALGUARD_THIS_RUN" not in os.environ


def test_blocks_of_one_run_go_after_days_and_others_stay(tmp_path: Path) -> None:
    old = time.time() - 4 * 86400
    folders = {
        name: tmp_path / "scores/v1" / digest_of(name) for name in ("old run", "run", "old model")
    }
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / f"{digest_of('block')}.parquet").write_bytes(b"block")
        about = {"run": "0" * 16} if "run" in name else {}
        write_description(folder, name=name, task="t", model=about)
        if "old" in name:
            os.utime(folder / f"{digest_of('block')}.parquet", (old, old))
    forget_old_runs(tmp_path)
    assert {name for name, folder in folders.items() if folder.exists()} == {"run", "old model"}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({}, "m: scored anew by every run"),
        ({"inputs": {}}, ""),
        ({"settings": (), "assignment": {}}, ""),
        (
            {"settings": (), "assignment": {}, "build": BuildRecipe(command=("a",))},
            "m: built anew by every run",
        ),
        (
            {
                "settings": (),
                "assignment": {},
                "build": BuildRecipe(call="evalguard.recipes.gguf:convert"),
            },
            "",
        ),
    ],
)
def test_the_screen_says_what_is_made_anew_and_which_line_would_keep_it(
    folder: Path, model: dict[str, object], said: str
) -> None:
    found = scored_anew([replace(hooked(folder), **model)])  # type: ignore[arg-type]
    assert found.startswith(said)
    assert bool(found) == bool(said) == ("write 'inputs: []' below m" in found)
