"""The cache: where it lies, what is in it, whose it is, its size limit, and how it is cleared.

Links are not followed, and what evalguard did not name is not among them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from evalguard.core.amounts import parse_size, size_text
from evalguard.core.settings import Value
from evalguard.errors import UsageError
from evalguard.store.atomic_files import DAMAGED_SUFFIX, make_private_folder, write_atomically
from evalguard.store.leases import FileLock, Lease

SCHEMA = "evalguard.cache/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFolder:
    """What is kept of one model, or pair of models, in one way.

    Attributes:
        kind: scores, references, divergences, builds, floors, facts, devices, answers, logs.
        key: name of the folder: a digest of everything that can change what is in it.
        name: the model's, as it was last called; "" where nobody wrote it down.
        model: what is known of the model: type, dtype, device.
        files: finished blocks, or files where there are no blocks.
        size: bytes, of everything in it.
        last_used: seconds since 1970; 0 for an empty one.
        damaged: files that were set aside.
        leftovers: what killed processes left.
    """

    kind: str
    key: str
    path: str
    name: str = ""
    tasks: tuple[str, ...] = ()
    model: Mapping[str, Value] = field(default_factory=dict)
    created: str = ""
    files: int = 0
    size: int = 0
    last_used: float = 0.0
    damaged: int = 0
    leftovers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheListing:
    """What lies in a cache folder, the most recently used first."""

    folder: str
    entries: tuple[KeptFolder, ...]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedItem:
    """A block, a build or another file that was removed."""

    kind: str
    path: str
    size: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePruning:
    """What was removed from a cache folder.

    Attributes:
        in_use: what was kept because another process holds it.
        failed: what could not be removed, one message each.
        left: bytes that are left.
    """

    folder: str
    removed: tuple[RemovedItem, ...]
    left: int
    in_use: int = 0
    failed: tuple[str, ...] = ()

    @property
    def freed(self) -> int:
        """Bytes."""
        return sum(item.size for item in self.removed)


BLOCK_KINDS = ("scores", "references", "divergences")
"""Kinds of blocks, each in a folder of its own."""
LAYOUT = "v1"
"""The number of the layout: a later one gets a folder of its own beside this one."""
BLOCK_SUFFIX = ".parquet"
ABOUT_FILE = "about.json"
ItemState = Literal["kept", "damaged", "leftover"]
# Only names that evalguard itself gives: a folder may hold anything.
HALF_FILE = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.partial")
LOG_FILE = re.compile(r"(worker|server)-\d+-.*\.log")
_DIGEST = re.compile(r"[0-9A-Za-z_-]{1,128}")
_HALF_BUILD = re.compile(r"\.([0-9a-f]+)-[^/]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheItem:
    """A file or folder.

    Attributes:
        kind: as of ``KeptFolder``.
        folder: what it belongs to.
        used: when it was last written or read, in seconds since 1970.
        locks: lock files of whoever makes or uses it.
    """

    kind: str
    folder: Path
    path: Path
    size: int
    used: float
    state: ItemState = "kept"
    locks: tuple[Path, ...] = ()


def find_items(cache_dir: Path) -> Iterator[CacheItem]:
    """Yield everything in a cache folder that evalguard may have put there."""
    for kind in BLOCK_KINDS:
        for layout in list_folders(cache_dir / kind):
            for folder in list_folders(layout):
                yield from _of_blocks(kind, folder)
    yield from _of_builds(cache_dir / "builds")
    for folder in list_folders(cache_dir / "floors"):
        yield from _files("floors", folder, re.compile(r".+\.json"))
    for layout in list_folders(cache_dir / "facts"):
        for folder in list_folders(layout):
            yield from _files("facts", folder, re.compile(r".+\.json"))
    yield from _files("devices", cache_dir / "devices", re.compile(r".+\.json"))
    yield from _files("answers", cache_dir / "answers", re.compile(r"[0-9a-f]+\.jsonl"))
    logs = cache_dir / "logs"
    if logs.is_dir() and not logs.is_symlink():
        yield from _files("logs", logs, LOG_FILE)


def list_folders(parent: Path) -> list[Path]:
    """Return the folders in a folder, without links; none where it is a link or not there."""
    return [Path(entry) for entry in list_entries(parent) if entry.is_dir(follow_symlinks=False)]


def _of_blocks(kind: str, folder: Path) -> Iterator[CacheItem]:
    for entry in list_entries(folder):
        state, locks = _of_block(entry.name, folder)
        if state is not None:
            yield _item(kind, folder, entry, state, locks)


def _of_block(name: str, folder: Path) -> tuple[ItemState | None, tuple[Path, ...]]:
    """What a name in a folder of blocks stands for, and the lock of the block it belongs to."""
    half = HALF_FILE.fullmatch(name)
    block = (half[1] if half else name).partition(".")[0]
    if not _DIGEST.fullmatch(block):
        return None, ()
    lock = (folder / f"{block}.lock",)
    if half:
        return "leftover", lock if half[1] != ABOUT_FILE else ()
    if name == f"{block}.lock":
        return "leftover", lock
    if name.endswith(DAMAGED_SUFFIX) and name.startswith(f"{block}{BLOCK_SUFFIX}."):
        return "damaged", lock
    return ("kept", lock) if name == f"{block}{BLOCK_SUFFIX}" else (None, ())


def _of_builds(builds: Path) -> Iterator[CacheItem]:
    for entry in list_entries(builds):
        half = _HALF_BUILD.fullmatch(entry.name)
        if not entry.is_dir(follow_symlinks=False):
            continue
        if half:
            yield _item("builds", builds, entry, "leftover", (builds / f"{half[1]}.lock",))
            continue
        digest, dot, _ = entry.name.partition(".")
        if _DIGEST.fullmatch(digest) and (not dot or entry.name.endswith(DAMAGED_SUFFIX)):
            locks = (builds / f"{digest}.lock", builds / f"{digest}.used")
            yield _item("builds", Path(entry), entry, "damaged" if dot else "kept", locks)


def _files(kind: str, folder: Path, names: re.Pattern[str]) -> Iterator[CacheItem]:
    for entry in list_entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(kind, Path(entry), names)
        elif HALF_FILE.fullmatch(entry.name):
            yield _item(kind, folder, entry, "leftover", ())
        elif names.fullmatch(entry.name):
            yield _item(kind, folder, entry, "kept", ())
        elif entry.name.endswith(DAMAGED_SUFFIX) and names.match(entry.name):
            yield _item(kind, folder, entry, "damaged", ())


def _item(
    kind: str, folder: Path, entry: os.DirEntry[str], state: ItemState, locks: tuple[Path, ...]
) -> CacheItem:
    status = entry.stat(follow_symlinks=False)
    size = status.st_size
    if entry.is_dir(follow_symlinks=False):
        size = sum(file.lstat().st_size for file in Path(entry).rglob("*"))
    return CacheItem(
        kind=kind,
        folder=folder,
        path=Path(entry),
        size=size,
        used=status.st_mtime,
        state=state,
        locks=locks,
    )


def list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, by name; nothing where it is a link or cannot be read."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


_DESCRIPTION_FORMAT = "evalguard.about/1"
_LARGEST_DESCRIPTION = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDescription:
    """Attributes as in ``KeptFolder``."""

    name: str = ""
    tasks: tuple[str, ...] = ()
    model: Mapping[str, Value] = field(default_factory=dict)
    created: str = ""


def read_description(folder: Path) -> FolderDescription:
    """Return what is written there; nothing where it cannot be read."""
    path = folder / ABOUT_FILE
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_DESCRIPTION:
            return FolderDescription()
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return FolderDescription()
    if not isinstance(description, dict) or description.get("format") != _DESCRIPTION_FORMAT:
        return FolderDescription()
    tasks, model = description.get("tasks"), description.get("model")
    return FolderDescription(
        name=_text(description.get("name")),
        tasks=tuple(_text(task) for task in tasks) if isinstance(tasks, list) else (),
        model=model if isinstance(model, dict) else {},
        created=_text(description.get("created")),
    )


def write_description(folder: Path, *, name: str, task: str, model: Mapping[str, Value]) -> None:
    """Write down what a folder that is there is of; a disk that refuses changes nothing.

    The name is the last one used. Two processes may write at a time: one's task may then be missing
    until it is used again.
    """
    before = read_description(folder)
    now = FolderDescription(
        name=name,
        tasks=tuple(sorted({*before.tasks, task})),
        model=dict(model),
        created=before.created or datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    if now == before:
        return
    text = json.dumps({"format": _DESCRIPTION_FORMAT, **asdict(now)}, indent=2)
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            write_atomically(folder / ABOUT_FILE, text.encode())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def take_inventory(cache_dir: Path) -> CacheListing:
    """Return what lies in a cache folder, the most recently used first."""
    by_folder: dict[tuple[str, Path], list[CacheItem]] = defaultdict(list)
    for item in find_items(cache_dir):
        by_folder[item.kind, _group(item, cache_dir)].append(item)
    entries = [_entry(kind, folder, items) for (kind, folder), items in by_folder.items()]
    return CacheListing(
        folder=str(cache_dir),
        entries=tuple(sorted(entries, key=lambda e: (-e.last_used, e.kind, e.key))),
    )


def _group(item: CacheItem, cache_dir: Path) -> Path:
    """The folder that an item is listed under: a floor lies deeper than its model."""
    if item.kind != "floors":
        return item.folder
    floors = cache_dir / "floors"
    return floors / item.folder.relative_to(floors).parts[0]


def _entry(kind: str, folder: Path, items: Sequence[CacheItem]) -> KeptFolder:
    finished = [item for item in items if item.state == "kept"]
    about = read_description(folder)
    return KeptFolder(
        kind=kind,
        key=folder.name,
        path=str(folder),
        name=about.name if kind in BLOCK_KINDS else "",
        tasks=about.tasks,
        model=about.model,
        created=about.created,
        files=len(finished),
        size=sum(item.size for item in items),
        last_used=max((item.used for item in finished), default=0.0),
        damaged=sum(item.state == "damaged" for item in items),
        leftovers=sum(item.state == "leftover" for item in items),
    )


# Writing takes seconds. A process's number says nothing: it may be of another machine (a shared
# disk) or container, or be used again; so age decides.
_ABANDONED_AFTER = 24 * 3600.0
_OLD_LOG = 30 * 24 * 3600.0
# Only names that evalguard itself gives: a folder of results may hold anything.
_HALF_RUN = re.compile(r"\.\d{8}T\d{6}Z-.+-vs-.+\.partial")
_PROBE = re.compile(r"\.evalguard-[0-9a-f]{8}")


def remove_unfinished_runs(root: Path) -> None:
    """Remove run folders that were never finished, and what went into them."""
    _remove(root.glob(".*"), (_HALF_RUN, HALF_FILE, _PROBE), older=_ABANDONED_AFTER)


def remove_leftovers(cache_dir: Path) -> None:
    """Remove half-written files, locks of nobody, and logs of workers that nobody will read.

    Links are not followed.
    """
    for kind in (*BLOCK_KINDS, "floors", "facts"):
        for folder in (
            inner for outer in list_folders(cache_dir / kind) for inner in list_folders(outer)
        ):
            entries = list_entries(folder)
            hidden = (Path(entry) for entry in entries if entry.name.startswith("."))
            _remove(hidden, (HALF_FILE,), older=_ABANDONED_AFTER)
            for lock in (Path(entry) for entry in entries if entry.name.endswith(".lock")):
                _remove_dead_lock(lock)
    _remove(map(Path, list_entries(cache_dir / "logs")), (LOG_FILE,), older=_OLD_LOG)


def _remove_dead_lock(lock: Path) -> None:
    """Remove the lock of a process that was killed."""
    with contextlib.suppress(OSError):
        held = Lease.tried(lock) if _is_old(lock, _ABANDONED_AFTER) else None
        if held is not None:
            held.release()


def _remove(paths: Iterable[Path], names: Iterable[re.Pattern[str]], *, older: float) -> None:
    # Tidying is not worth an error: what cannot be looked at or removed stays.
    with contextlib.suppress(OSError):
        for path in paths:
            if any(name.fullmatch(path.name) for name in names):
                _remove_if_old(path, older)


def _remove_if_old(path: Path, older: float) -> None:
    with contextlib.suppress(OSError):
        if not _is_old(path, older):
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_old(path: Path, older: float) -> bool:
    return time.time() - path.lstat().st_mtime >= older


def open_cache_dir(chosen: Path | None) -> Path:
    """Return the cache folder: the chosen one, else the default.

    One that is missing is made for this user alone: it holds prompts, answers and models. What
    killed processes left in it is removed. That it cannot be made is said by what writes to it.

    Raises:
        UsageError: if none was chosen and this user has no home folder.
    """
    folder = (chosen or default_cache_dir()).absolute()
    with contextlib.suppress(OSError):
        make_private_folder(folder)
        remove_leftovers(folder)
    return folder


def anybody_can_write(folder: Path) -> bool:
    """Whether any other user of this machine could have put files into a folder, or made it.

    Groups are trusted: who shares a cache shares it with a group.
    """
    if os.name != "posix":
        return False
    try:
        status, above = folder.stat(), folder.parent.stat()
    except OSError:
        return False
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(above.st_mode & stat.S_IWOTH) and status.st_uid not in (0, os.geteuid())


def default_cache_dir(
    environ: Mapping[str, str] | None = None, *, platform: str = sys.platform
) -> Path:
    """Return EVALGUARD_CACHE_DIR, else ``evalguard`` under the user's cache folder.

    Args:
        environ: environment variables; None: those of this process.
        platform: as ``sys.platform``.

    Raises:
        UsageError: if there is no home folder either.
    """
    variables = os.environ if environ is None else environ
    if variables.get("EVALGUARD_CACHE_DIR"):
        return Path(variables["EVALGUARD_CACHE_DIR"]).expanduser()
    # By hand: of platformdirs late versions alone ignore a relative path, as XDG says one must, and
    # tell that there is no home folder.
    xdg = Path(variables.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "evalguard"
    if platform == "win32" and variables.get("LOCALAPPDATA"):
        return Path(variables["LOCALAPPDATA"]) / "evalguard" / "Cache"
    try:
        home = Path(variables.get("HOME") or "~").expanduser()
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder, so the cache has no place",
            hint="--cache-dir FOLDER or EVALGUARD_CACHE_DIR gives it one",
        ) from error
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "evalguard"


# Floors took long to measure; another token budget of a device makes other blocks.
_NEVER_AGED = ("floors", "devices")
# Writing takes seconds: what is older and without a lock was left by a process that was killed.
_ABANDONED = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRules:
    """What is to go; without any rule, only what killed processes left.

    Attributes:
        older_than: seconds since it was last used; floors and what was measured of devices stay.
        max_size: bytes that may stay; the least recently used goes first, the same stay.
        everything: all, but floors and what was measured of devices.
        measured: these, too.
        used_before: what was used later stays, in seconds since 1970.
        of_runs: only blocks that were kept for one run alone.
    """

    older_than: float | None = None
    max_size: int | None = None
    everything: bool = False
    measured: bool = False
    used_before: float = math.inf
    of_runs: bool = False


def prune(cache_dir: Path, rules: PruneRules, *, now: float) -> CachePruning:
    """Remove what the rules say from a cache folder.

    Args:
        now: seconds since 1970.
    """
    items = list(find_items(cache_dir))
    work = _Removal(now=now)
    for item, why in choose_items(items, rules, now=now):
        work.remove(item, why)
    _remove_empty({item.folder for item in items if item.kind in BLOCK_KINDS})
    return CachePruning(
        folder=str(cache_dir),
        removed=tuple(work.removed),
        left=sum(item.size for item in items) - sum(item.size for item in work.removed),
        in_use=work.in_use,
        failed=tuple(work.failed),
    )


def choose_items(
    items: Sequence[CacheItem], rules: PruneRules, *, now: float
) -> list[tuple[CacheItem, str]]:
    """Return what is to go and why, the least recently used first."""
    chosen = {item.path: (item, "left over") for item in items if item.state == "leftover"}
    within = list(items)
    if rules.of_runs:
        blocks = {item.folder for item in within if item.kind in BLOCK_KINDS}
        theirs = {folder for folder in blocks if read_description(folder).model.get("run")}
        within = [item for item in within if item.folder in theirs]
    older_than = math.inf if rules.older_than is None else rules.older_than
    for item in within:
        if rules.everything and (rules.measured or item.kind not in _NEVER_AGED):
            chosen[item.path] = (item, "asked for")
        elif item.kind not in _NEVER_AGED and item.used < now - older_than:
            chosen[item.path] = (item, "old")
    if rules.max_size is not None:
        remaining = [item for item in items if item.path not in chosen]
        for item in _items_beyond_size(
            remaining, rules.max_size, {item.path for item in within}, rules
        ):
            chosen[item.path] = (item, "beyond the size")
    return sorted(chosen.values(), key=lambda of: of[0].used)


def _items_beyond_size(
    items: Iterable[CacheItem], most: int, within: set[Path], rules: PruneRules
) -> Iterable[CacheItem]:
    oldest_first = sorted(items, key=lambda item: item.used)
    size = sum(item.size for item in oldest_first)
    for item in oldest_first:
        if size <= most:
            return
        if item.path in within and item.kind not in _NEVER_AGED and item.used < rules.used_before:
            size -= item.size
            yield item


@dataclass(slots=True, kw_only=True)
class _Removal:
    now: float
    removed: list[RemovedItem] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    in_use: int = 0

    def remove(self, item: CacheItem, why: str) -> None:
        """Remove an item, unless somebody holds it, or may be writing it."""
        with ExitStack() as stack:
            if not self._claimed(item, stack):
                self.in_use += 1
                return
            try:
                self._unlink(item)
            except OSError as error:
                self.failed.append(f"{item.path} cannot be removed: {error.strerror or error}")
                return
            done = RemovedItem(kind=item.kind, path=str(item.path), size=item.size, why=why)
            self.removed.append(done)

    def _claimed(self, item: CacheItem, stack: ExitStack) -> bool:
        """Take an item's locks, if nobody holds them; else whether it is too old to be written."""
        abandoned = item.state != "leftover" or self.now - item.used >= _ABANDONED
        if not item.locks:
            return abandoned
        take = _take_lease if item.kind in BLOCK_KINDS else _take_lock
        try:
            return all(take(path, stack) for path in item.locks)
        except OSError:  # no locks here, or none can be made: age decides
            return abandoned

    def _unlink(self, item: CacheItem) -> None:
        if item.path in item.locks:  # a lock goes when it is released
            return
        if item.path.is_dir() and not item.path.is_symlink():
            shutil.rmtree(item.path)
            for beside in (".log", ".used", ".sha256"):
                with contextlib.suppress(OSError):
                    item.path.with_name(f"{item.path.name}{beside}").unlink()
        else:
            item.path.unlink(missing_ok=True)


def _take_lease(path: Path, stack: ExitStack) -> bool:
    lease = Lease.tried(path)
    if lease is not None:
        stack.callback(lease.release)
    return lease is not None


def _take_lock(path: Path, stack: ExitStack) -> bool:
    """Take the lock of a build; builders wait for it under its name, so it has to stay."""
    lock = FileLock.tried(path)
    if lock is not None:
        stack.callback(lock.release, remove=False)
    return lock is not None


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [ABOUT_FILE]:
                (folder / ABOUT_FILE).unlink()
            folder.rmdir()


CACHE_SIZE_VARIABLE = "EVALGUARD_CACHE_MAX_SIZE"
# When a block was used is known to the hour.
_JUST_USED = 3600.0
_GONE_ON_WITHIN = 3 * 86400.0
_RECENTLY_USED = "what was used in the last hour, or by this run, stays"


def cache_size_limit(
    *chosen: int | str | None, environ: Mapping[str, str] | None = None
) -> int | None:
    """Return the first limit that was given, in bytes: of these, else the environment's.

    Raises:
        UsageError: for what is not a size.
    """
    of_environment = (os.environ if environ is None else environ).get(CACHE_SIZE_VARIABLE) or None
    limit = next((given for given in (*chosen, of_environment) if given is not None), None)
    try:
        return parse_size(limit) if isinstance(limit, str) else limit
    except ValueError as error:
        where = CACHE_SIZE_VARIABLE if limit is of_environment else "the cache's size limit"
        raise UsageError(f"{where}: {error}", hint="e.g. 20GB") from error


def forget_old_runs(cache_dir: Path) -> None:
    """Remove blocks that runs kept for themselves and that nobody has gone on with for days."""
    rules = PruneRules(older_than=_GONE_ON_WITHIN, of_runs=True)
    prune(cache_dir, rules, now=time.time())


def limit_cache(
    limit: int | None, cache_dir: Path, say: Callable[[str], None], *, since: float
) -> None:
    """Remove the least recently used until the cache is as large as it may be, and say so.

    What was used in the last hour stays, and all that this run used, however long it took: that is
    called for again soonest.

    Args:
        since: when the run began, in seconds since 1970, by a clock that was set since or not.
    """
    if limit is None:
        return
    now = time.time()
    rules = PruneRules(max_size=limit, used_before=since - _JUST_USED)
    pruned = prune(cache_dir, rules, now=now)
    if pruned.removed or pruned.left > limit:
        why = pruned.failed[0] if pruned.failed else _RECENTLY_USED
        say(
            f"cache: {size_text(pruned.freed)} of what was not used lately removed, "
            f"{size_text(pruned.left)} of {size_text(limit)} left"
            + (f"; {why}" if pruned.left > limit else "")
        )
