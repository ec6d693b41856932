"""TaskSet: lm-eval tasks, loaded and configured alike for every model that will answer them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from evalguard.core.refused_writes import HF_HINT, unwritable
from evalguard.core.reports.findings import quote_message
from evalguard.core.task_group import TaskGroup
from evalguard.errors import EvalguardError, EvaluationError, UsageError, nearest
from evalguard.harness.document_subset import random_subset
from evalguard.harness.requests import RenderChat, TaskRequests, build_requests
from evalguard.harness.surroundings import executed_code, lm_eval_surroundings
from evalguard.harness.task_data import find_broken_lines
from evalguard.harness.task_groups import read_groups
from evalguard.harness.task_index import TaskIndex
from evalguard.harness.task_options import TaskOptions

if TYPE_CHECKING:
    from lm_eval.api.task import Task


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
            for name, one in self._tasks.items()
            if one.get_config("output_type") != "generate_until"
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
            place = f"{path}:{line}" if line else str(path)
            return UsageError(
                f"task '{name}' cannot be loaded: {place}: {fault}",
                hint="its data is a JSON object a line; `evalguard check` names every such line of "
                "a guard file's tasks",
            )
    found = f"{type(error).__name__}: {error}"
    if not isinstance(error, (OSError, DatasetsError)):
        return EvaluationError(
            f"task '{name}' cannot be loaded: {type(error).__name__}",
            quotes=quote_message(error),  # its code has rows of the data set before it
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
