"""TaskSet: lm-eval tasks, loaded and configured alike for every model that will answer them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from evalguard.core.refused_writes import HF_HINT, unwritable
from evalguard.core.task_group import GroupMetric, TaskGroup
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.harness.requests import RenderChat, TaskRequests, build_requests, random_subset
from evalguard.harness.surroundings import TaskOptions, executed_code, lm_eval_surroundings
from evalguard.regular_file import is_special

if TYPE_CHECKING:
    from lm_eval.api.group import Group
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager


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
        tasks: dict[str, Any] = {}
        groups: dict[str, tuple[str, ...]] = {}
        aggregates: dict[str, TaskGroup] = {}
        for name in index.resolve(names):
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


def _load(index: TaskIndex, name: str) -> Any:
    try:
        return index.manager.load([name])
    except Exception as error:  # a task's own code, or the hub's, may raise anything
        raise _load_error(index, name, error) from error


def _load_error(index: TaskIndex, name: str, error: Exception) -> EvaluationError:
    from datasets.exceptions import DatasetsError

    refused = unwritable(error, os.environ)
    if refused is not None:
        return EvaluationError(f"task '{name}' cannot be loaded: {refused}", hint=HF_HINT)
    found = f"{type(error).__name__}: {error}"
    if not isinstance(error, (OSError, DatasetsError)):
        return EvaluationError(
            f"task '{name}' cannot be loaded: {found}",
            hint="its YAML or its Python file is at fault; --debug shows where",
        )
    datasets = index.datasets(name)
    named = [data for data in datasets if data.split(" ")[0] in str(error)] or list(datasets)
    data = ", ".join(f"'{one}'" for one in named[:3]) + (", ..." if len(named) > 3 else "")
    return EvaluationError(
        f"task '{name}' cannot be loaded: its data ({data or 'unnamed'}) cannot be had: {found}",
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


# lm-eval's groups as plain data: their subtasks, and which metrics are aggregated over them.


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


# TaskIndex: which tasks, groups and tags there are, by name.


_WILDCARDS = "*?["


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
        if not all(self._satisfied(name) for name in names):
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
        searched = [str(folder) for folder in self._folders]
        searched += [f"lm-eval's own {len(self.manager.all_tasks)} names"] if self._complete else []
        raise UsageError(
            f"there is no lm-eval task, group or tag '{name}'"
            f"{nearest(name, self.manager.all_tasks)} (searched: {', '.join(searched)})",
            hint=self._unreadable(name)
            or "`evalguard tasks` lists the names; --include_path adds a folder of task files",
        )

    def _unreadable(self, name: str) -> str:
        """Name the file that mentions the task, which lm-eval drops silently if it is broken."""
        for folder in self._folders:
            for path in sorted(folder.glob("**/*.yaml")):
                text = path.read_text(encoding="utf-8", errors="replace")
                if f"task: {name}\n" in text or f"group: {name}\n" in text:
                    return f"{path} names it, but lm-eval cannot read that file: check its YAML"
        return ""


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
