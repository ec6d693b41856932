"""TaskSet: lm-eval tasks, loaded and configured alike for every model that will answer them."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from evalguard.core.findings import quote_message
from evalguard.core.redaction import HF_HINT, unwritable
from evalguard.core.scores import GroupMetric, TaskGroup
from evalguard.errors import EvalguardError, EvaluationError, UsageError, nearest
from evalguard.harness.requests import RenderChat, TaskRequests, build_requests, random_subset
from evalguard.harness.surroundings import executed_code, find_broken_lines, lm_eval_surroundings
from evalguard.harness.task_options import TaskOptions
from evalguard.regular_file import is_special

if TYPE_CHECKING:
    from lm_eval.api.group import Group
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager


def read_groups(groups: Mapping[str, Group]) -> tuple[TaskGroup, ...]:
    """Read the groups that lm-eval loaded, those inside others too."""
    return tuple(_group(group) for group in groups.values())


def _group(group: Group) -> TaskGroup:
    counted = tuple(str(task.task_name) for task in group.get_all_tasks())
    tasks = tuple(dict.fromkeys(counted))
    return TaskGroup(
        name=group.name,
        children=tuple(group.child_names),
        tasks=tasks,
        counted=() if counted == tasks else counted,
        groups=tuple(dict.fromkeys(inner.name for inner in group.get_all_groups())),
        metrics=tuple(_metric(entry) for entry in group.aggregate_metric_list or ()),
    )


def _metric(entry: Any) -> GroupMetric:
    filters = entry.filter_list
    return GroupMetric(
        metric=str(entry.metric),
        filters=None if filters is None else tuple(map(str, filters)),
        weight_by_size=bool(entry.weight_by_size),
    )


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
        files: dict[Path, None] = {}
        for leaf in self._leaves(name):
            entry = self.manager.task_index.get(leaf)
            config = (entry.cfg if entry is not None else None) or {}
            arguments = config.get("dataset_kwargs")
            if config.get("dataset_path") == "json" and isinstance(arguments, dict):
                files.update(dict.fromkeys(_local_files(arguments.get("data_files"))))
        return tuple(files)

    def datasets(self, name: str) -> tuple[str, ...]:
        """Names of the datasets that a task, or the tasks of a group or tag, are made from."""
        names: dict[str, None] = {}
        for leaf in self._leaves(name):
            entry = self.manager.task_index.get(leaf)
            config = (entry.cfg if entry is not None else None) or {}
            if path := config.get("dataset_path"):
                part = config.get("dataset_name")
                names[f"{path} ({part})" if part else str(path)] = None
        return tuple(names)

    def _read(self, *, include_defaults: bool) -> TaskManager:
        from lm_eval.tasks import TaskManager

        return TaskManager(
            include_path=list(self._folders) or None, include_defaults=include_defaults
        )

    def _satisfied(self, name: str) -> bool:
        """Whether the index read so far suffices for a name, a group's members included."""
        if _is_file(name):
            return True
        matches = self._matches(name)
        # A wildcard may have more matches among lm-eval's own tasks.
        if not matches or any(mark in name for mark in _WILDCARDS):
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
        matches = self._matches(name)
        if matches:
            return matches
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
        for value in named.values() if isinstance(named, dict) else named:
            yield from _local_files(value)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Loaded leaf tasks, in the order asked for.

    Attributes:
        options: what they were loaded with.
        groups: direct children by name of every group and tag that was asked for.
        aggregates: the groups among them, and those inside, with what lm-eval aggregates.
        notes: per task, what the user asked for and did not get.
        executed: code of the modules that loading them has run.
    """

    options: TaskOptions
    groups: Mapping[str, tuple[str, ...]]
    notes: Mapping[str, tuple[str, ...]]
    aggregates: tuple[TaskGroup, ...] = ()
    executed: tuple[CodeType, ...] = field(repr=False, compare=False, default=())
    _tasks: Mapping[str, Task] = field(repr=False)
    _built: dict[str, TaskRequests] = field(repr=False, compare=False, default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the leaf tasks."""
        return tuple(self._tasks)

    @property
    def of_likelihoods(self) -> tuple[str, ...]:
        """Names of the tasks that score given texts; the others have answers generated."""
        return tuple(
            name
            for name, task in self._tasks.items()
            if task.get_config("output_type") != "generate_until"
        )

    def requests(self, task_name: str, *, render_chat: RenderChat | None = None) -> TaskRequests:
        """Return the requests of one task, the same at every call.

        They are built once; with a chat template once per call, because that is the model's.

        Args:
            render_chat: the model's ``render_chat(messages, add_generation_prompt)``; used only
                if the options apply a chat template.

        Raises:
            UsageError: for a task that is not in this set.
            EvaluationError: if lm-eval or the task's own code cannot build them.
        """
        if task_name not in self._tasks:
            raise UsageError(
                f"task '{task_name}' was not loaded{nearest(task_name, self._tasks)}",
                hint=f"loaded: {', '.join(self._tasks)}",
            )
        built = self._built.get(task_name)
        if built is None:
            built = build_requests(
                task_name,
                self._tasks[task_name],
                self.options,
                render_chat=render_chat,
                notes=self.notes.get(task_name, ()),
            )
            if self.options.sample is not None:
                built = random_subset(built, self.options.sample, seed=self.options.seed)
            if not self.options.apply_chat_template:
                self._built[task_name] = built
        return built


def load_tasks(names: Sequence[str], *, options: TaskOptions) -> TaskSet:
    """Load lm-eval tasks by name; groups, tags and wildcards become their leaf tasks.

    Raises:
        UsageError: for an unknown name, a task that needs more than text, or one that runs
            generated code without the user's consent.
        EvaluationError: if a task's data or code cannot be had.
    """
    with lm_eval_surroundings(), executed_code() as executed:
        index = TaskIndex(options.include_paths)
        tasks: dict[str, Any] = {
            name: task for name in names if (task := _task_made_here(name, options)) is not None
        }
        names = [name for name in names if name not in tasks]
        groups: dict[str, tuple[str, ...]] = {}
        aggregates: dict[str, TaskGroup] = {}
        for name in index.resolve(names) if names or not tasks else ():
            loaded = _load(index, name)
            for leaf, task in loaded["tasks"].items():
                _keep(tasks, leaf, task, asked=name)
            groups.update({group: tuple(members) for group, members in loaded["group_map"].items()})
            aggregates.update({group.name: group for group in read_groups(loaded["groups"])})
            if name not in groups and index.members(name):
                groups[name] = tuple(loaded["tasks"])
        notes = {leaf: _configure(leaf, task, options) for leaf, task in tasks.items()}
    return TaskSet(
        options=options,
        groups=groups,
        notes=notes,
        aggregates=tuple(aggregates.values()),
        executed=tuple(executed),
        _tasks=tasks,
    )


def _task_made_here(name: str, options: TaskOptions) -> Task | None:
    """Return what is no task of a YAML file as one of lm-eval's kind; None: it is one."""
    if name in options.chats:
        from evalguard.harness.chat_task import ChatTask

        return ChatTask(name, options.chats[name].requests)
    return None


def task_names(include_paths: Sequence[Path], *, lm_eval: bool = True) -> tuple[str, ...]:
    """Return the names of all tasks, groups and tags of the given folders and of lm-eval.

    Args:
        lm_eval: whether to read lm-eval's own names too, which takes seconds.

    Raises:
        UsageError: for a folder that does not exist.
    """
    with lm_eval_surroundings():
        index = TaskIndex(include_paths)
        return index.names() if lm_eval else index.own_names()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFault:
    """What is wrong with tasks, seen without loading one.

    Of a line of its data (``line`` of ``file``, 0 for all of it), or of the name ``task``, where
    ``file`` is None.
    """

    task: str
    message: str
    hint: str = ""
    file: Path | None = None
    line: int = 0


def find_task_faults(names: Sequence[str], include_paths: Sequence[Path]) -> Iterator[TaskFault]:
    """Yield names that no task, group or tag has, and broken lines of the tasks' own JSON data."""
    with lm_eval_surroundings():
        index = TaskIndex(include_paths)
        unknown = dict(index.unknown(names))
        for name, error in unknown.items():
            yield TaskFault(task=name, message=str(error), hint=error.hint)
        files = {
            path: name for name in names if name not in unknown for path in index.data_files(name)
        }
        for path, name in files.items():
            try:
                for line, fault in find_broken_lines(path):
                    yield TaskFault(task=name, message=fault, file=path, line=line)
            except (OSError, EOFError) as error:
                yield TaskFault(task=name, message=f"cannot be read: {error}", file=path)


def _load(index: TaskIndex, name: str) -> Any:
    try:
        return index.manager.load([name])
    except Exception as error:  # a task's own code, or the hub's, may raise anything
        raise _load_error(index, name, error) from error


def _load_error(index: TaskIndex, name: str, error: Exception) -> EvalguardError:
    from datasets.exceptions import DatasetsError

    refused = unwritable(error, os.environ)
    if refused is not None:
        return EvaluationError(f"task '{name}' cannot be loaded: {refused}", hint=HF_HINT)
    for path in index.data_files(name):
        for line, fault in islice(find_broken_lines(path), 1):
            where = f"{path}:{line}" if line else str(path)
            return UsageError(
                f"task '{name}' cannot be loaded: {where}: {fault}",
                hint="its data is a JSON object a line; `evalguard check` names every such line of "
                "a guard file's tasks",
            )
    cause = f"{type(error).__name__}: {error}"
    if not isinstance(error, (OSError, DatasetsError)):
        return EvaluationError(
            f"task '{name}' cannot be loaded: {type(error).__name__}",
            quotes=quote_message(error),  # its code has rows of the data set before it
            hint="its YAML or its Python file is at fault; --debug shows where",
        )
    datasets = index.datasets(name)
    named = [data for data in datasets if data.split(" ")[0] in str(error)] or list(datasets)
    data = ", ".join(f"'{dataset}'" for dataset in named[:3]) + (", ..." if len(named) > 3 else "")
    return EvaluationError(
        f"task '{name}' cannot be loaded: its data ({data or 'unnamed'}) cannot be had: {cause}",
        hint="a hub dataset needs a network once (and HF_HUB_OFFLINE, HF_DATASETS_OFFLINE unset); "
        "a local one needs its file where the task's YAML says",
    )


def _keep(tasks: dict[str, Any], leaf: str, task: Task, *, asked: str) -> None:
    known = tasks.setdefault(leaf, task)
    if known is task or known.dump_config() == task.dump_config():
        return
    raise UsageError(
        f"task '{leaf}' is asked for twice with different options, once through '{asked}'",
        hint="ask for them in two runs",
    )


def _configure(name: str, task: Task, options: TaskOptions) -> tuple[str, ...]:
    """Apply the options as lm_eval.simple_evaluate does; return what could not be applied."""
    if getattr(task, "UNSAFE_CODE", False) and not options.confirm_unsafe:
        raise UsageError(
            f"task '{name}' is marked as unsafe: it executes code that the model writes",
            hint="--confirm_run_unsafe_code runs it all the same",
        )
    if getattr(task, "MULTIMODAL", False):
        raise UsageError(
            f"task '{name}' needs images or sound, which evalguard does not support",
            hint="choose tasks that are made of text",
        )
    if options.gen_kwargs and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value=dict(options.gen_kwargs), update=True)
    own = task.get_config("num_fewshot")
    if options.num_fewshot is None:
        if own is None:
            task.set_config(key="num_fewshot", value=0)
        return ()
    if own == 0:
        if options.num_fewshot == 0:
            return ()
        return (f"num_fewshot {options.num_fewshot} was not applied: the task fixes it at 0",)
    task.set_config(key="num_fewshot", value=options.num_fewshot)
    return ()
