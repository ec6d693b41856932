"""Guard files checked without loading a model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from evalguard.config.guard import Guard, GuardSet
from evalguard.config.guard_search import load_guards
from evalguard.config.local_paths import resolve_path
from evalguard.config.problems import raise_problems
from evalguard.conversion.planning import plan_conversion
from evalguard.core.gate import Gate
from evalguard.core.limits import OF_ANSWERS
from evalguard.core.settings import Value
from evalguard.errors import (
    EvaluationError,
    GuardFileError,
    MisalignedRunsError,
    UsageError,
    nearest,
)
from evalguard.models.arguments import HF_TYPES, check_type
from evalguard.models.model_folders import check_model_folder, find_local_folder
from evalguard.report.words.plain_text import printable
from evalguard.run.choices import Choices
from evalguard.run.loading.own_environment import (
    check_runtime,
    shows_distributions,
)
from evalguard.run.loading.serving import check_served
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.reference_scorer import chat_template_missing
from evalguard.run.sources import (
    BaselineSource,
    ModelSource,
    ReferenceSource,
    RunSource,
    Source,
    StoredSource,
    with_location,
)


def check_guards(files: Sequence[Path]) -> list[str]:
    """Return a line for each file: what it defines. Without files, those that are found are read.

    Raises:
        GuardFileError: a file cannot be used, or names a path that is not there, with every problem
            of every such file.
    """
    lines: list[str] = []
    errors: list[GuardFileError] = []
    for file in dict.fromkeys(files) or (None,):
        try:
            found = load_guards(file, cwd=Path.cwd(), allow_code=False)
            raise_problems(problem for guard in found.guards for problem in guard.absent)
        except GuardFileError as error:
            errors.append(error)
        else:
            lines += map(_guard_line, found.guards)
    if errors:
        raise _join_errors(errors)
    return lines


def _guard_line(guard: Guard) -> str:
    numbers = (
        (len(guard.variants), "model"),
        (len(guard.pairs), "pair"),
        (sum(len(variant.settings) for variant in guard.variants.values()), "setting"),
    )
    told = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers]
    return printable(f"{guard.label}: {', '.join(told)}")


def _join_errors(errors: Sequence[GuardFileError]) -> GuardFileError:
    first, *others = errors
    if not others:
        return first
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return GuardFileError(
        "\n".join([first.what, *map(str, others)]), where=first.where, hint="\n".join(hints)
    )


# The guard files of a comparison, and whether it needs them at all.


def find_guards(
    specs: Sequence[str], options: CompareOptions, *, cwd: Path
) -> tuple[GuardSet, tuple[str, ...]]:
    """Load the guard files, and say so where those that were only found are left out.

    A folder ``configs/`` may belong to another program. Its files are in nobody's way as long as
    no side of the comparison can be a name in them: both are paths, hub ids or lm-eval runs.

    Raises:
        GuardFileError: if a file that was named, or may be needed, cannot be read.
    """
    try:
        return load_guards(options.config, cwd=cwd, allow_code=options.allow_code), ()
    except GuardFileError as error:
        if options.config is not None or any(_may_be_model_name(spec, cwd) for spec in specs):
            raise
        first = str(error).partition("\n")[0]
        return GuardSet(guards=()), (f"no guard file is used: {first}",)


def _may_be_model_name(spec: str, cwd: Path) -> bool:
    return "/" not in spec and not os.path.exists(resolve_path(spec, cwd))


# Whether what the gate asks for can be measured: seen before hours of scoring.


_GIVE_MODEL = "name the model itself with --base"


def check_measurable(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse a gate that asks for what this comparison cannot show.

    Raises:
        UsageError: naming the limits, or the option.
    """
    _check_scorer(choices)
    _check_rolling_bos(sources, choices)
    _check_switched_on(choices)
    for source in sources:
        if isinstance(source, StoredSource):
            _check_stored(source, choices.gate)
        elif isinstance(source, ReferenceSource):
            _check_reference(source, choices)
        else:
            _check_shown(source, choices.gate)
    _check_versions(sources, choices)


def _check_reference(base: ReferenceSource, choices: Choices) -> None:
    """Refuse what a reference file does not hold."""
    if choices.task_options.apply_chat_template:
        raise chat_template_missing(base.path)
    absent = [task for task in choices.tasks if task not in base.tasks]
    if absent and not any(task in base.tasks for task in choices.tasks):
        raise UsageError(
            f"{base.path} has no answers to {', '.join(absent)}{nearest(absent[0], base.tasks)}",
            hint=f"its tasks: {', '.join(base.tasks)}",
        )


def _check_scorer(choices: Choices) -> None:
    mode, needed = choices.distributions.mode, choices.gate.needs_distributions
    asked = mode in ("lockstep", "reference")
    if choices.policy.scorer == "harness" and (asked or (mode == "auto" and needed)):
        what = f"distributions {mode}" if asked else "a limit of the gate"
        raise UsageError(
            f"{what} needs the models' distributions, and lm-eval's own path (--scorer harness) "
            "shows none",
            hint="leave out one of the two",
        )


def _check_versions(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse a model beside an lm-eval run of which no metric could be paired with the model's.

    Raises:
        MisalignedRunsError: before the model is scored, with what to do.
    """
    runs = [source for source in sources if isinstance(source, RunSource)]
    models = [source for source in sources if isinstance(source, ModelSource)]
    if not runs or not models or "reading" in choices.allow:
        return
    (run,) = runs
    here = metadata.version("lm_eval")
    then = {str((table.reading or {}).get("lm_eval") or "not recorded") for table in run.run.tables}
    if then <= {here}:
        return
    raise MisalignedRunsError(
        f"the version of lm-eval is {', '.join(then)} in the run {run.name}, and {here} here: "
        "versions build and read prompts differently (some add BOS, some do not), and a finished "
        "run does not show its token ids",
        hint=f"run lm_eval again with {here}, or name the model instead of its run; if both read "
        "the same tokens: --allow-differing tokens",
    )


def _check_rolling_bos(sources: Sequence[Source], choices: Choices) -> None:
    if choices.policy.rolling_bos != "once":
        return
    leave_out = "leave out rolling_bos: once (run of the guard file)"
    if choices.policy.scorer == "harness":
        raise UsageError(
            "rolling_bos once reads whole texts otherwise than lm-eval's own path (--scorer "
            "harness) does",
            hint="leave out one of the two",
        )
    for source in sources:
        if isinstance(source, ModelSource) and not shows_distributions(source.variant):
            raise UsageError(
                f"rolling_bos once works with model type hf, and '{source.name}' is of type "
                f"'{source.variant.model}': lm-eval's own code reads its texts",
                hint=leave_out,
            )


def _check_switched_on(choices: Choices) -> None:
    if choices.distributions.mode == "off" and choices.gate.needs_distributions:
        raise UsageError(
            f"the gate has limits on {_distribution_limits(choices.gate)}, and distributions "
            "are off",
            hint="leave out --distributions off (distributions: off), or the limits",
        )


def _check_shown(source: ModelSource, gate: Gate) -> None:
    """A limit on distributions needs all of them; the tokens that a server shows are not enough."""
    if gate.needs_distributions and not shows_distributions(source.variant):
        raise UsageError(
            f"the gate has limits on {_distribution_limits(gate)}, and '{source.name}', of type "
            f"'{source.variant.model}', shows no whole distributions: from the most probable "
            "tokens of a server KL is only estimated, from below, and no limit is held to that",
            hint="name the model itself (model: hf) for base and candidate, or leave out the "
            "limits (--gate-metric, gate: {metrics: ...})",
        )


def _check_stored(source: StoredSource, gate: Gate) -> None:
    """Scores that were kept are all there is of a model that is not asked any more."""
    kept = isinstance(source, BaselineSource)
    what = f"the stored base '{source.name}'" if kept else f"the finished run '{source.name}'"
    instead = _GIVE_MODEL if kept else "name the model instead of its run"
    if gate.needs_distributions:
        raise UsageError(
            f"the gate has limits on {_distribution_limits(gate)}, and {what} holds scores, no "
            "distributions",
            hint=f"{instead}, or leave out the limits (--gate-metric, gate: {{metrics: ...}})",
        )
    asks_for_answers = any(limit.metric == OF_ANSWERS for limit in gate.limits)
    if asks_for_answers and not any(table.answers for table in source.run.tables):
        instead = "give its run folder in place of the history" if kept else instead
        raise UsageError(
            f"the gate has a limit on {OF_ANSWERS}, and {what} keeps no answers",
            hint=f"{instead}, or leave out the limit",
        )


def _distribution_limits(gate: Gate) -> str:
    return ", ".join(limit.metric for limit in gate.limits if limit.of_distributions)


# Checks of the models before anything long runs: are they there, are they models at all?


_CONFIG_FILE = "config.json"


def check_models(sources: Iterable[ModelSource]) -> None:
    """Refuse models that can be seen to be none, before the first one is loaded and scored.

    Raises:
        UsageError: for a folder or hub id that leads nowhere, a folder that holds no model, or a
            model type whose numbers are wrong.
        EvaluationError: for weights that are damaged, or pickled and not allowed to be.
        SettingError: for settings that contradict each other.
    """
    for source in sources:
        with with_location(source):
            variant = source.variant
            check_type(variant.model)
            arguments = plan_conversion(variant).model_args
            check_served(variant)
            check_runtime(variant)
            # What a recipe builds is not there yet; other model types read names their own way.
            if variant.model in HF_TYPES and variant.build is None:
                _check_model(arguments, allow_pickle=variant.allow_pickle)


def _check_model(arguments: Mapping[str, Value], *, allow_pickle: bool) -> None:
    name = arguments.get("pretrained")
    if not (isinstance(name, str) and name):
        return
    try:
        folder = find_local_folder(name)
        if folder is not None:
            folder = _model_folder(folder, arguments)
    except EvaluationError as error:
        raise UsageError(str(error), hint=error.hint) from error
    if folder is None:
        check_hub_model(name, arguments)
    else:
        check_model_folder(folder, allow_pickle=allow_pickle, needed=())


def _model_folder(folder: Path, arguments: Mapping[str, Value]) -> Path:
    """Return the folder that holds the model.

    Raises:
        EvaluationError: if it is not there, or holds none.
    """
    folder /= str(arguments.get("subfolder") or "")
    if not folder.is_dir():
        raise EvaluationError(f"there is no model folder {folder}")
    if not (arguments.get("gguf_file") or (folder / _CONFIG_FILE).is_file()):
        check_model_folder(folder, allow_pickle=True, needed=(_CONFIG_FILE,))
    return folder


def check_hub_model(name: str, arguments: Mapping[str, Value]) -> None:
    """Refuse a hub id that leads nowhere; its config.json, which loading needs, is fetched.

    What else may be wrong with a hub model (no permission, no config.json) loading says better.

    Raises:
        UsageError: if the hub has no such model, or the local cache has none and going online is
            switched off.
        EvaluationError: if it is not in the cache and the hub does not answer.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    absent = f"there is no folder {name}, and no such model in the local Hugging Face cache"
    try:
        hf_hub_download(
            name,
            _CONFIG_FILE,
            revision=str(arguments.get("revision") or "main"),
            subfolder=str(arguments.get("subfolder") or "") or None,
        )
    except GatedRepoError:
        return
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"there is no folder {name}, and the Hugging Face hub has no such model",
            hint="give a path, or check the hub id (a private model needs a login)",
        ) from error
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            raise UsageError(
                f"{absent}; HF_HUB_OFFLINE forbids to look further",
                hint="give a path, or unset HF_HUB_OFFLINE",
            ) from error
        raise EvaluationError(
            f"{absent}; the hub cannot be reached", hint="give a path, or go online and try again"
        ) from error
    except (EntryNotFoundError, HfHubHTTPError, HFValidationError, OSError):
        return
