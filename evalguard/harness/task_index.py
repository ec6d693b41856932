"""TaskIndex: which tasks, groups and tags there are, by name."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.errors import UsageError, nearest
from evalguard.regular_file import is_special

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


_WILDCARDS = "*?["
_NAME = re.compile(r"""^[ \t-]*(?:task|group|tag):[ \t]*["']?([^\s"']+)""", re.MULTILINE)


class TaskIndex:
    """Task names of the user's folders and, only if they do not suffice, of lm-eval itself.

    Reading lm-eval's own task files takes seconds, so that is put off until a name needs it.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(
                    f"task folder '{folder}' does not exist or is not a folder",
                    hint="--include_path takes the folder that holds the task's YAML file",
                )
            _refuse_special_files(folder)
        self._folders = tuple(folders)
        self._complete = False
        self.manager = self._read(include_defaults=False)

    def names(self) -> tuple[str, ...]:
        """Names of all tasks, groups and tags, lm-eval's own included."""
        self._complete = True
        self.manager = self._read(include_defaults=True)
        return tuple(self.manager.all_tasks)

    def own_names(self) -> tuple[str, ...]:
        """Names of the folders' tasks, groups and tags."""
        return tuple(self.manager.all_tasks)

    def resolve(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of tasks, groups, tags and files asked for, each once, in order.

        Wildcards are expanded. A path to a task's YAML file stands for itself.

        Raises:
            UsageError: for a name that is nowhere, with the nearest ones.
        """
        if not names:
            raise UsageError("no task was asked for", hint="name one: --tasks lambada_openai")
        if not self._complete and not all(self._satisfied(name) for name in names):
            for name in names:
                if self._is_nowhere(name):
                    raise self._unknown(name, _NAME.findall(_own_texts()))
            self._complete = True
            self.manager = self._read(include_defaults=True)
        resolved: dict[str, None] = {}
        for name in names:
            resolved.update(dict.fromkeys(self._expand(name)))
        return tuple(resolved)

    def members(self, name: str) -> tuple[str, ...]:
        """Names of the direct children of a group or tag; () for a task or a file."""
        entry = self.manager.task_index.get(name)
        if entry is None:
            return ()
        if entry.kind.name == "TAG":
            return tuple(sorted(entry.tags))
        if entry.kind.name == "GROUP":
            return tuple(_member_names(entry.cfg))
        return ()

    def unknown(self, names: Sequence[str]) -> Iterator[tuple[str, UsageError]]:
        """Yield the names that are nowhere, with what there is to say of each.

        lm-eval's own files are parsed only for a name that stands in them, and on no line of its
        own.
        """
        for name in dict.fromkeys(names):
            if self._satisfied(name) or (not self._complete and _has_own_line(name)):
                continue
            try:
                self.resolve([name])
            except UsageError as error:
                yield name, error

    def data_files(self, name: str) -> tuple[Path, ...]:
        """JSON files on this machine that a task, or the tasks of a group or tag, are made from."""
        found: dict[Path, None] = {}
        for leaf in self._leaves(name):
            entry = self.manager.task_index.get(leaf)
            config = (entry.cfg if entry is not None else None) or {}
            arguments = config.get("dataset_kwargs")
            if config.get("dataset_path") == "json" and isinstance(arguments, dict):
                found.update(dict.fromkeys(_local_files(arguments.get("data_files"))))
        return tuple(found)

    def datasets(self, name: str) -> tuple[str, ...]:
        """Names of the datasets that a task, or the tasks of a group or tag, are made from."""
        found: dict[str, None] = {}
        for leaf in self._leaves(name):
            entry = self.manager.task_index.get(leaf)
            config = (entry.cfg if entry is not None else None) or {}
            if path := config.get("dataset_path"):
                part = config.get("dataset_name")
                found[f"{path} ({part})" if part else str(path)] = None
        return tuple(found)

    def _read(self, *, include_defaults: bool) -> TaskManager:
        from lm_eval.tasks import TaskManager

        return TaskManager(
            include_path=list(self._folders) or None, include_defaults=include_defaults
        )

    def _satisfied(self, name: str) -> bool:
        """Whether the index read so far suffices for a name, a group's members included."""
        if _is_file(name):
            return True
        found = self._matches(name)
        # A wildcard may have more matches among lm-eval's own tasks.
        if not found or any(mark in name for mark in _WILDCARDS):
            return False
        return all(leaf in self.manager.task_index for leaf in self._leaves(name))

    def _leaves(self, name: str) -> Iterator[str]:
        seen, waiting = {name}, [name]
        while waiting:
            current = waiting.pop(0)
            children = [child for child in self.members(current) if child not in seen]
            if not self.members(current):
                yield current
            seen.update(children)
            waiting.extend(children)

    def _matches(self, name: str) -> tuple[str, ...]:
        index = self.manager.task_index
        if name in index:
            return (name,)
        if any(mark in name for mark in _WILDCARDS):
            return tuple(sorted(fnmatch.filter(index, name)))
        return ()

    def _expand(self, name: str) -> tuple[str, ...]:
        if name not in self.manager.task_index and _is_file(name):
            return (name,)
        found = self._matches(name)
        if found:
            return found
        raise self._unknown(name, self.manager.all_tasks)

    def _is_nowhere(self, name: str) -> bool:
        """Whether neither the folders nor any text of lm-eval's own files has a name."""
        if any(mark in name for mark in _WILDCARDS) or _is_file(name) or self._matches(name):
            return False
        return name not in _own_texts()

    def _unknown(self, name: str, names: Sequence[str]) -> UsageError:
        """Say that a name is nowhere; ``names`` are those that it may be a slip of."""
        searched = ", ".join([*map(str, self._folders), "lm-eval's own"])
        near = nearest(name, dict.fromkeys([*self.manager.all_tasks, *names]))
        return UsageError(
            f"there is no lm-eval task, group or tag '{name}'{near} (searched: {searched})",
            hint=self._unreadable(name)
            or "`evalguard tasks` lists the names; --include_path adds a folder of task files; "
            "chat requests of a file: --requests FILE",
        )

    def _unreadable(self, name: str) -> str:
        """Name the file that mentions the task, which lm-eval drops silently if it is broken."""
        for folder in self._folders:
            for path in sorted(folder.glob("**/*.yaml")):
                text = path.read_text(encoding="utf-8", errors="replace")
                if f"task: {name}\n" in text or f"group: {name}\n" in text:
                    return f"{path} names it, but lm-eval cannot read that file: check its YAML"
        return ""


@lru_cache(maxsize=1)
def _own_texts() -> str:
    """The text of all of lm-eval's own task files: read in a second, and parsed in ten.

    A file that another one includes need have no ending.
    """
    import lm_eval.tasks

    texts = []
    for folder, _, files in os.walk(Path(lm_eval.tasks.__file__).parent):
        for file in files:
            if "yaml" in file or "." not in file:
                texts.append(Path(folder, file).read_text(encoding="utf-8", errors="replace"))
    return "\n".join(texts)


def _has_own_line(name: str) -> bool:
    """Whether a line of lm-eval's own files has a name for a task, a group, a tag or a member."""
    if any(mark in name for mark in _WILDCARDS) or name not in _own_texts():
        return False
    line = rf"^[ \t-]*(?:(?:task|group|tag):)?[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*$"
    return re.search(line, _own_texts(), re.MULTILINE) is not None


def _local_files(named: object) -> Iterator[Path]:
    """Files of this machine among data_files: a path or pattern, a list, or a map of splits."""
    if isinstance(named, str) and "://" not in named:
        yield from (Path(path) for path in sorted(glob.glob(named, recursive=True)))
    elif isinstance(named, (list, dict)):
        for one in named.values() if isinstance(named, dict) else named:
            yield from _local_files(one)


def _refuse_special_files(folder: Path) -> None:
    """lm-eval opens every YAML file of a folder, and would wait for the other end of a pipe."""
    for path in folder.glob("**/*.yaml"):
        if is_special(path):
            raise UsageError(
                f"{path} is not a regular file, and lm-eval would wait for it",
                hint="--include_path takes a folder of task files: move it elsewhere",
            )


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def _member_names(config: dict[str, Any] | None) -> Iterator[str]:
    members = (config or {}).get("task")
    for member in members if isinstance(members, list) else []:
        if isinstance(member, str):
            yield member
        elif isinstance(member, dict):
            name = member.get("group") or member.get("task")
            if isinstance(name, str):
                yield name
