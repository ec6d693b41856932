"""What a process reads while other people's code runs in it: an audit hook and a few wrappers.

The loader of a build system, in place of a reader of source texts ("Build systems a la carte",
Mokhov, Mitchell, Peyton Jones 2018: verifying traces; ninja's depfiles). Standard library only, and
Python 3.10: it also runs in the interpreters of models (``watched_command.py``).
"""

from __future__ import annotations

import builtins
import contextlib
import csv
import functools
import hashlib
import importlib.machinery
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

_HERE = os.path.abspath(__file__)
_OWN = os.path.dirname(os.path.dirname(_HERE)) + os.sep
_SYSTEM = ("/proc/", "/sys/", "/dev/")
# Libraries of the system, which a package of Python brings in.
_SYSTEM_LIBRARIES = ("/usr/", "/lib", "/opt/", "/etc/")
_STDLIB = tuple({os.path.realpath(sysconfig.get_path(n)) + os.sep for n in ("stdlib", "platstdlib")}
                | {sysconfig.get_path(n) + os.sep for n in ("stdlib", "platstdlib")})  # fmt: skip
_SITE = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_SITE_PARTS = ("/site-packages/", "/dist-packages/")
_CODE = (".py", ".so", ".pyc", ".pyd")
# Compilers of models, which read what they have written in an earlier process.
_COMPILERS = ("/torch/_inductor/", "/torch/_dynamo/", "/triton/")
# Larger files are compared by size and times while they are read, and digested once.
_LARGEST_READ_TWICE = 2**26
# Packages that read files in code of their own, where no hook of Python's sees it.
_PAST_PYTHON = frozenset(
    {
        "cv2", "datasets", "duckdb", "faiss", "h5py", "lightgbm", "llama_cpp", "lmdb", "netCDF4",
        "onnxruntime", "openvino", "pandas", "polars", "pyarrow", "rasterio", "rocksdb", "tables",
        "tensorflow", "xgboost",
    }
)  # fmt: skip
# Functions of others that do, and whose first argument is the file: module -> dotted names.
_READERS = {
    "safetensors": ("safe_open", "_safetensors_rust.safe_open"),
    "tokenizers": ("Tokenizer.from_file", "models.BPE.from_file", "models.BPE.read_file",
                   "models.WordPiece.from_file", "models.WordPiece.read_file",
                   "models.WordLevel.from_file", "models.WordLevel.read_file"),
    "sentencepiece": ("SentencePieceProcessor.Load", "SentencePieceProcessor.LoadFromFile"),
    "torch": ("from_file", "jit.load", "UntypedStorage.from_file"),
}  # fmt: skip
_PROCESSES = frozenset(
    {
        "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
        "os.system", "pty.spawn", "subprocess.Popen",
    }
)  # fmt: skip
_NETWORK = frozenset({"socket.connect", "socket.getaddrinfo", "socket.sendto"})


class Observer:
    """Notes what other people's code reads in this process; one for its whole life.

    Counted is what happens on behalf of code that is neither Python's, nor an installed package's,
    nor evalguard's, imports of installed packages excepted; and every file of such code.

    Args:
        whole: whether the process itself is other people's: what it does in no file's name counts.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._busy = threading.local()
        self._kinds: dict[str, str] = {}
        self._files: dict[str, _Seen] = {}
        self._written: set[str] = set()
        self._places: dict[str, str] = {}
        self._listings: dict[str, str] = {}
        self._searched: dict[str, set[str]] = {}
        self._variables: dict[str, str | None] = {}
        self._packages: set[str] = set()
        self._reasons: dict[str, None] = {}
        self._ignored: list[str] = []
        self._model: list[str] = []
        self._patched: set[str] = set()
        self._start = {name: os.environ[name] for name in os.environ}
        self._set: set[str] = set()
        self._digests: dict[str, str | None] = {}

    # What is called by Python, at any moment: it must not fail, and not watch itself.

    def start(self) -> None:
        """Watch from now on; nothing can end it."""
        sys.addaudithook(self._hear)
        sys.meta_path.insert(0, _Finder(self))
        self._watch_imports()
        self._watch_variables()
        self._watch_stat()
        _leave_compiled_files()

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event not in _EVENTS or getattr(self._busy, "on", False):
            return
        self._busy.on = True
        try:
            self._note(event, given)
        except Exception as error:  # noqa: BLE001  an error here would be one of the code's own
            self._reasons[f"what it does could not be watched ({type(error).__name__})"] = None
        finally:
            self._busy.on = False

    def _note(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            self._note_open(*given)
        elif event in ("import", "ctypes.dlopen"):
            name = given[0] if event == "ctypes.dlopen" else given[1]
            path = _path(name)
            if path and os.sep in path and os.path.isfile(path):
                self.note_file(path)
        elif event in ("os.listdir", "os.scandir"):
            self._note_listing(given[0])
        elif event == "sqlite3.connect" and self.caller():
            self.note_file(_path(given[0]))
        elif where := self.caller():
            what = "starts another program" if event in _PROCESSES else "uses the network"
            self._reasons[f"{os.path.basename(where)} {what} ({event})"] = None

    def _note_open(self, name: Any, mode: Any, flags: Any) -> None:
        path = _path(name)
        if not path:
            return
        if isinstance(mode, str):
            writes = not set(mode).isdisjoint("wxa")
        else:
            writes = bool(flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        if writes:
            self._written |= {path} - self._files.keys()
        elif path.endswith(_CODE) or self.caller():
            self.note_file(path)

    def _note_listing(self, name: Any) -> None:
        path = _path("." if name is None else name)
        known = not path or path in self._listings or path in self._written
        if not known and self.caller() and not self._is_covered(path + os.sep):
            self._listings[path] = list_digest(path)

    def note_file(self, path: str) -> None:
        """Note a file that is going to be read, unless this process has written it."""
        path = os.path.abspath(path) if path else ""
        known = not path or path in self._files or path in self._written
        if not known and not self._is_covered(path):
            self._files[path] = _Seen.of(path)

    def note_search(self, name: str, folders: Iterable[str]) -> None:
        """Note where a module that other people's code imports is looked for."""
        tail = name.rpartition(".")[2]
        for folder in folders:
            place = os.path.abspath(folder or ".")
            if not self._is_covered(place + os.sep + "x.py"):
                self._searched.setdefault(place, set()).add(tail)

    def note_import(self, name: str, file: str) -> None:
        """Note what a module of other people imports."""
        top = name.partition(".")[0]
        if top in _PAST_PYTHON:
            told = f"{os.path.basename(file)} uses {top}, which reads files past Python"
            self._reasons[told] = None
        elif top and top not in sys.stdlib_module_names:
            self._packages.add(top)

    def note_variable(self, name: str | None) -> None:
        """Note an environment variable that other people's code reads; None: all of them."""
        file = self._reader()
        if not file:
            return
        if name is None:
            told = f"{os.path.basename(file)} reads the environment as a whole"
            self._reasons[told] = None
        elif name not in self._set and name not in self._variables:
            self._variables[name] = self._start.get(name)

    def note_place(self, path: Any) -> None:
        """Note a path that other people's code looks at."""
        if getattr(self._busy, "on", False):
            return
        self._busy.on = True
        try:
            place = _path(path)
            known = not place or place in self._places or place in self._written
            if not known and self.caller() and not self._is_covered(place):
                self._places[place] = place_kind(place)
        except Exception as error:  # noqa: BLE001  an error here would be one of the code's own
            self._reasons[f"what it does could not be watched ({type(error).__name__})"] = None
        finally:
            self._busy.on = False

    # Whose code is at work.

    def caller(self) -> str:
        """The innermost file of other people on the stack, "" where an import is nearer."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            kind = self._kinds.get(name) or self._kind(name)
            if kind == "import":
                return ""
            if kind == "foreign":
                return name
            frame = frame.f_back
        return "the command" if self._whole else ""

    def importer(self) -> str:
        """The file of other people that imports something at this moment; "" for any other."""
        return self._nearest(lambda name: name.startswith("<frozen") or name == _HERE)

    def _reader(self) -> str:
        passed = (os.__file__, sys.modules["_collections_abc"].__file__)
        return self._nearest(lambda name: name in (*passed, _HERE) or name.startswith("<frozen"))

    def _nearest(self, passes: Callable[[str], bool]) -> str:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and passes(frame.f_code.co_filename):
            frame = frame.f_back
        name = "" if frame is None else frame.f_code.co_filename
        return name if name and self._kind(name) == "foreign" else ""

    def _kind(self, name: str) -> str:
        kind = self._kinds.get(name)
        if kind is None:
            busy, self._busy.on = getattr(self._busy, "on", False), True  # it may read a RECORD
            try:
                kind = self._kinds[name] = self._new_kind(name)
            finally:
                self._busy.on = busy
        return kind

    def _new_kind(self, name: str) -> str:
        if name.startswith("<frozen importlib") or any(part in name for part in _COMPILERS):
            return "import"
        if name.startswith("<"):
            return "foreign" if self._whole and name in ("<string>", "<stdin>") else "other"
        return "other" if is_library(name) or name.startswith(_OWN) else "foreign"

    def _is_covered(self, path: str) -> bool:
        """Whether something else stands for a file: a package's digest, the model's own."""
        # such a folder itself, too, which a recipe looks for where it writes
        if path.startswith(_SYSTEM) or (path + os.sep).startswith(tuple(self._ignored)):
            return True
        for place in self._model:
            if path.startswith(place):
                inner = path[len(place) :].split(os.sep)
                return not any(part.startswith(".") or part == "__pycache__" for part in inner)
        return path.endswith(_CODE) and (
            is_library(path) or (path.startswith(_OWN) and not self._whole)
        )

    # What watches beside the audit hook.

    def _watch_imports(self) -> None:
        real = builtins.__import__

        def watched(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            found = real(name, globals, locals, fromlist, level)
            top = name.partition(".")[0]
            if not level and top in _READERS and top not in self._patched:
                self._watch_readers(top)
            file = globals.get("__file__") if isinstance(globals, dict) else None
            if not level and isinstance(file, str) and self._kind(file) == "foreign":
                self.note_import(name, file)
            return found

        builtins.__import__ = watched

    def _watch_readers(self, top: str) -> None:
        module = sys.modules.get(top)
        spec = getattr(module, "__spec__", None)
        if module is None or getattr(spec, "_initializing", False):
            return
        self._patched.add(top)
        for dotted in _READERS[top]:
            *path, last = dotted.split(".")
            owner: Any = module
            for name in path:
                owner = getattr(owner, name, None)
            if owner is not None and hasattr(owner, last):
                self._watch_reader(owner, last)

    def _watch_reader(self, owner: Any, name: str) -> None:
        static = vars(owner).get(name)
        real = getattr(owner, name)
        in_class = isinstance(owner, type)
        is_method = (
            in_class
            and not isinstance(static, (staticmethod, classmethod))
            and (type(static).__name__ == "function")
        )

        def watched(*args: Any, **named: Any) -> Any:
            self._note_given((*args, *named.values()))
            return real(*args, **named)

        with contextlib.suppress(AttributeError, TypeError):  # of a type that cannot be changed
            setattr(owner, name, watched if is_method or not in_class else staticmethod(watched))

    def _note_given(self, arguments: Iterable[Any]) -> None:
        """Note files that a function is given by name."""
        paths = [p for p in map(_path, arguments) if p] if self.caller() else []
        was, self._busy.on = getattr(self._busy, "on", False), True
        try:
            for path in paths:
                if os.path.isfile(path):
                    self.note_file(path)
        finally:
            self._busy.on = was

    def _watch_variables(self) -> None:
        observer, base = self, type(os.environ)

        class Environ(base):  # type: ignore[misc, valid-type]
            def __getitem__(self, key: Any) -> Any:
                observer.note_variable(os.fsdecode(key) if isinstance(key, (str, bytes)) else None)
                return super().__getitem__(key)

            def __contains__(self, key: Any) -> bool:
                observer.note_variable(os.fsdecode(key) if isinstance(key, (str, bytes)) else None)
                return self.encodekey(key) in self._data

            def __setitem__(self, key: Any, value: Any) -> None:
                # A library may set what is not set, or empty the environment for a moment.
                if observer._reader():
                    observer._set.add(os.fsdecode(key))
                super().__setitem__(key, value)

            def __iter__(self) -> Iterator[Any]:
                observer.note_variable(None)
                return iter(super().__iter__())

            def copy(self) -> Any:
                observer.note_variable(None)
                return super().copy()

        os.environ.__class__ = Environ
        os.environb.__class__ = Environ

    def _watch_stat(self) -> None:
        real = os.stat

        def stat(path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> os.stat_result:
            if dir_fd is None and not isinstance(path, int):
                self.note_place(path)
            return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

        # Classes may take it for their own (pathlib of Python 3.10 does): as a builtin, it is no
        # method there.
        watched = staticmethod(stat)
        for those in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if real in those:
                those.add(watched)
        os.stat = watched

    # What is told in the end.

    def ignore(self, folders: Iterable[str]) -> None:
        """Folders that are evalguard's own, whatever is in them."""
        for one in folders:
            self._ignored += [path + os.sep for path in {os.path.abspath(one), _real(one)}]

    def ignore_model(self, paths: Iterable[str]) -> None:
        """Files and folders that are digested as the model; what is hidden in them is not."""
        for one in paths:
            for path in {os.path.abspath(one), _real(one)}:
                self._model += [path + os.sep] if os.path.isdir(path) else [path]
            for folder, _, names in os.walk(one):  # links lead to where files really are
                self._ignored += [_real(os.path.join(folder, name)) for name in names
                                  if os.path.islink(os.path.join(folder, name))]  # fmt: skip

    def told(self) -> dict[str, Any]:
        """Return what was read up to now, as plain data; see ``conversion/observed_reads.py``."""
        self._busy.on = True
        try:
            return self._told()
        finally:
            self._busy.on = False

    def _told(self) -> dict[str, Any]:
        self._look_at_modules()
        self._look_at_maps()
        files: dict[str, str | None] = {}
        for path, seen in list(self._files.items()):
            if self._is_covered(path):
                continue
            if path not in self._digests:
                self._digests[path] = seen.digest_unchanged(path)
            digest = self._digests[path]
            if digest == "":
                self._reasons[f"{path} changed while it was read"] = None
            files[path] = digest
        return {
            "files": self._without_copies(files),
            "places": {p: k for p, k in self._places.items() if not self._is_covered(p)},
            "listings": {p: k for p, k in self._listings.items() if not self._is_covered(p)},
            "searched": {
                folder: {"names": sorted(names), "found": find_modules(folder, names)}
                for folder, names in self._searched.items()
                if not self._is_covered(folder + os.sep)
            },
            "variables": {n: None if v is None else text_digest(v)
                          for n, v in self._variables.items()},
            "packages": sorted(self._installed()),
            "reasons": list(self._reasons),
        }  # fmt: skip

    def _look_at_modules(self) -> None:
        """Note modules that came past the hook: Python's own start imports some."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            path = file if isinstance(module, ModuleType) and isinstance(file, str) else _HERE
            if path != _HERE and os.path.isfile(path):
                self.note_file(path)

    def _look_at_maps(self) -> None:
        """Refuse what is mapped into memory and was never seen to be opened."""
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
                lines = {line.split(maxsplit=5)[5].rstrip() for line in maps if " /" in line}
        except (OSError, IndexError):
            return
        seen = {os.path.realpath(path) for path in (*self._files, *self._written)}
        for path in lines:
            known = path in seen or path.startswith(_SYSTEM + _SYSTEM_LIBRARIES) or is_library(path)
            if known or path.startswith((sys.prefix, sys.base_prefix, _OWN)):
                continue
            if os.path.isfile(path) and not self._is_covered(path):
                self._reasons[f"{path} is in memory, and was not opened by Python"] = None

    def _without_copies(self, files: dict[str, str | None]) -> dict[str, str | None]:
        """Without the copies that transformers makes of a checkpoint's code, where that is known.

        The copy of another day stays there until loading replaces it.
        """
        copies = [path for path in files if "/transformers_modules/" in path]
        return {
            path: digest
            for path, digest in files.items()
            if path not in copies or not self._is_copy(path)
        }

    def _is_copy(self, path: str) -> bool:
        name = os.path.basename(path)
        originals = (os.path.join(folder, name) for folder in self._model)
        others = (
            one
            for one in self._files
            if os.path.basename(one) == name and "/transformers_modules/" not in one
        )
        own = file_digest(path)
        return any(os.path.isfile(o) and file_digest(o) == own for o in (*originals, *others))

    def _installed(self) -> Iterator[str]:
        for name in self._packages:
            module = sys.modules.get(name)
            places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
            if any(is_site(place + os.sep) for place in places if place):
                yield name


class _Seen:
    """What a file was when it was opened: its digest, or size and times of a large one."""

    def __init__(self, state: tuple[int, ...] | None, digest: str) -> None:
        self._state = state
        self._digest = digest

    @classmethod
    def of(cls, path: str) -> _Seen:
        state = _state(path)
        small = state is not None and state[0] <= _LARGEST_READ_TWICE
        return cls(state, file_digest(path) or "" if small else "")

    def digest_unchanged(self, path: str) -> str | None:
        """Its digest; None: it is not there; "": it is another one by now."""
        state = _state(path)
        if state is None or self._state is None:
            return None if state is self._state else ""
        found = file_digest(path)
        if self._digest:
            return found if found == self._digest else ""
        return found if state == self._state else ""


class _Finder:
    """Finds no module; sees where modules are looked for."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:  # noqa: ARG002
        """Note that other people's code looks for a module."""
        file = self._observer.importer()
        if file:
            self._observer.note_search(name, sys.path if path is None else path)
            if path is None:
                self._observer.note_import(name, file)


_EVENTS = frozenset(
    {"open", "import", "ctypes.dlopen", "os.listdir", "os.scandir", "sqlite3.connect"}
    | _PROCESSES | _NETWORK
)  # fmt: skip


def _leave_compiled_files() -> None:
    """Let nobody read or write compiled files of code that is edited.

    Python takes one for current if whole seconds and size are equal.
    """
    external = sys.modules["importlib._bootstrap_external"]
    real = external.cache_from_source

    def cache_from_source(path: Any, *args: Any, **named: Any) -> str:
        if not is_library(os.path.abspath(path)):
            raise NotImplementedError
        return str(real(path, *args, **named))

    external.cache_from_source = cache_from_source  # type: ignore[attr-defined]


def is_library(path: str) -> bool:
    """Whether a file is of Python's library or of an installed package, editable ones not."""
    return path.startswith(_STDLIB) or is_site(path)


def is_site(path: str) -> bool:
    """Whether a file is an installed package's, wherever on Python's path it was put.

    ``pip install --target``, layers of cloud functions and zipped environments put packages into
    folders of any name; there a package is what the RECORD of its ``.dist-info`` lists.
    """
    if path.startswith(_SITE) or any(part in path for part in _SITE_PARTS):
        return True
    for place in sys.path:
        folder = os.path.join(os.path.abspath(place), "") if place else ""
        if folder and path.startswith(folder):
            top = path[len(folder) :].partition(os.sep)[0]
            if top in _recorded_names(folder):
                return True
    return False


@functools.lru_cache(maxsize=256)
def _recorded_names(folder: str) -> frozenset[str]:
    """Names in a folder that belong to packages which an installer put there."""
    names: set[str] = set()
    try:
        inside = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
    except OSError:
        return frozenset()
    for name in inside:
        try:
            with open(os.path.join(folder, name, "RECORD"), encoding="utf-8", newline="") as file:
                rows = [row[0] for row in csv.reader(file) if row]
        except (OSError, ValueError, csv.Error):
            continue
        names.update(row.partition("/")[0] for row in rows if not os.path.isabs(row))
    return frozenset(names - {"..", "", "__pycache__"})


def _path(name: Any) -> str:
    """The absolute path of what a file is called by; "" for what is none."""
    if not isinstance(name, (str, bytes, os.PathLike)):
        return ""
    try:
        return os.path.abspath(os.fsdecode(name))
    except (ValueError, OSError):
        return ""


def _real(path: str) -> str:
    return os.path.realpath(path)


def _state(path: str) -> tuple[int, ...] | None:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def text_digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def file_digest(path: str) -> str | None:
    """SHA-256 of a file's content; None where there is none."""
    whole = hashlib.sha256()
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
    except OSError:
        return None
    return whole.hexdigest()


def list_digest(folder: str) -> str:
    """Digest of the names in a folder; "" where there is none."""
    try:
        return text_digest("\0".join(sorted(os.listdir(folder))))
    except OSError:
        return ""


def place_kind(path: str) -> str:
    """What is at a path: a file, a folder, or nothing."""
    return "file" if os.path.isfile(path) else "folder" if os.path.isdir(path) else "nothing"


def find_modules(folder: str, names: Iterable[str]) -> list[str]:
    """What in a folder could be imported under one of these names."""
    try:
        there = os.listdir(folder)
    except OSError:
        return []
    wanted = set(names)
    return sorted(
        one
        for one in there
        if one.partition(".")[0] in wanted
        and (one.endswith(tuple(importlib.machinery.all_suffixes()))
             or os.path.isdir(os.path.join(folder, one)))
    )  # fmt: skip
