"""What is refused before a model is loaded: what cannot be measured, or cannot stop early."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from evalguard.config.local_paths import is_written_as_path
from evalguard.config.options import CompareOptions
from evalguard.conversion.planning import plan_conversion
from evalguard.core.figures import split_name
from evalguard.core.gate import Gate
from evalguard.core.limits import BOUNDED, OF_ANSWERS
from evalguard.core.redaction import redacted_text
from evalguard.core.settings import Value, Variant
from evalguard.engine.choices import Choices
from evalguard.engine.error_places import with_location
from evalguard.engine.loading.own_environment import check_runtime, is_runtime, shows_distributions
from evalguard.engine.loading.serving import check_served
from evalguard.engine.reference_scorer import chat_template_missing
from evalguard.engine.sources import (
    BaselineSource,
    DumpSource,
    ModelSource,
    ReferenceSource,
    RunSource,
    Source,
    StoredSource,
)
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError, nearest
from evalguard.gguf_table import check_gguf_header
from evalguard.models.argument_checks import check_argument
from evalguard.models.arguments import (
    CHAT_TYPES,
    CLIENT_TYPES,
    HF_TYPES,
    check_type,
    no_chat_requests,
)
from evalguard.models.checkpoint_files import (
    HUB_TIMEOUT,
    check_model_folder,
    checkpoint_folder,
    find_local_folder,
    hub_snapshot,
)
from evalguard.models.failures import UNREACHABLE_HINT
from evalguard.models.loading import check_engine
from evalguard.models.quantised_folders import check_quantisation
from evalguard.models.runtimes.graphs import find_graph
from evalguard.models.runtimes.llama_cpp import find_model_file
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.served.shown_logprobs import TOP_ARGUMENT

_GIVE_MODEL = "name the model itself with --base"
# How models are asked and checked: of no effect where none is.
_OF_MODELS = (
    "apply_chat_template", "fewshot_as_multiturn", "gen_kwargs", "rolling_bos", "save_reference",
    "scorer", "system_instruction", "verify_scorer",
)  # fmt: skip
# What chooses documents, of no effect where they lie in folders.
_OF_TASKS = (
    "cluster", "limit", "num_fewshot", "reference_top_k", "requests", "sequential", "tasks",
)  # fmt: skip


def check_asked(sources: Sequence[Source], options: CompareOptions) -> None:
    """Refuse, of two finished runs or dumps, to be asked for other answers than theirs.

    Raises:
        UsageError: naming the options.
    """
    dumps = all(isinstance(source, DumpSource) for source in sources)
    runs = [source for source in sources if isinstance(source, StoredSource)]
    if len(runs) < len(sources) and not dumps:
        return
    default, idle = CompareOptions(), (*_OF_MODELS, *(_OF_TASKS if dumps else ()))
    asked = [
        field.name
        for field in fields(options)
        if field.name in idle and getattr(options, field.name) != getattr(default, field.name)
    ]
    tables = [table for source in runs for table in source.run.tables]
    shots = {table.run.get("num_fewshot") for table in tables}
    if runs and options.num_fewshot is not None and shots - {options.num_fewshot}:
        asked.append("num_fewshot")
    limit = options.limit
    if limit is not None and any(limit < table.n for table in tables):
        asked.append("limit")
    if dumps and options.distributions in ("lockstep", "reference"):
        asked.append("distributions")
    if asked:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
        what, its = ("dumps of outputs", "dumps") if dumps else ("finished runs", "runs")
        raise UsageError(
            f"both sides are {what}: no model is asked, so {names} would have no effect",
            hint=f"leave it out, or name the models in place of their {its}",
        )


def check_measurable(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse a gate that asks for what this comparison cannot show.

    Raises:
        UsageError: naming the limits, or the option.
    """
    _check_chats(sources, choices)
    _check_scorer(choices)
    _check_rolling_bos(sources, choices)
    _check_switched_on(choices)
    for source in sources:
        if isinstance(source, StoredSource):
            _check_stored(source, choices.gate)
        elif isinstance(source, ReferenceSource):
            _check_reference(source, choices)
        elif isinstance(source, ModelSource):
            _check_shown(source, choices.gate)
    _check_versions(sources, choices)


def _check_chats(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse chat requests to a model that is put prompts only."""
    for source in sources if choices.task_options.chats else ():
        if not isinstance(source, ModelSource):
            continue
        kind = source.variant.model
        if kind not in (*HF_TYPES, *CHAT_TYPES):
            raise no_chat_requests(f"{source.name} is of type '{kind}', and")


def _check_reference(base: ReferenceSource, choices: Choices) -> None:
    """Refuse what a file of a base does not hold."""
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
    """A limit on distributions needs all of them; what a server shows may break one on KL."""
    if not gate.needs_distributions or shows_distributions(source.variant):
        return
    whole = "name the model itself (model: hf, or a GGUF file: llama_cpp) for base and candidate"
    limits = [limit.metric for limit in gate.limits if limit.of_distributions]
    shown = source.variant.model_args.get(TOP_ARGUMENT)
    if all(metric in BOUNDED for metric in limits):
        if shown:
            return
        raise UsageError(
            f"the gate has a limit on {', '.join(limits)}, and '{source.name}', of type "
            f"'{source.variant.model}', shows no whole distributions; a lower bound of KL, which "
            "can break a limit, comes of the most probable tokens that it is asked for",
            hint=f"model_args: {{{TOP_ARGUMENT}: 20}} asks for them; to have it held or broken, "
            f"{whole}",
        )
    raise UsageError(
        f"the gate has limits on {_distribution_limits(gate)}, and '{source.name}', of type "
        f"'{source.variant.model}', shows no whole distributions: of the most probable tokens of "
        f"a server there is a lower bound of KL, to which {', '.join(BOUNDED)} alone is held",
        hint=f"{whole}, or leave out the limits (--gate-metric, gate: {{metrics: ...}})",
    )


def _check_stored(source: StoredSource, gate: Gate) -> None:
    """Scores that were kept are all there is of a model that is not asked any more."""
    is_baseline = isinstance(source, BaselineSource)
    what = (
        f"the stored base '{source.name}'" if is_baseline else f"the finished run '{source.name}'"
    )
    instead = _GIVE_MODEL if is_baseline else "name the model instead of its run"
    if gate.needs_distributions:
        raise UsageError(
            f"the gate has limits on {_distribution_limits(gate)}, and {what} holds scores, no "
            "distributions",
            hint=f"{instead}, or leave out the limits (--gate-metric, gate: {{metrics: ...}})",
        )
    shown = any(table.answers for table in source.run.tables)
    figures = [f for f in gate.figure_names if not shown or split_name(f)[1] != OF_ANSWERS]
    if figures and isinstance(source, BaselineSource) and not source.run.rows:
        raise UsageError(
            f"the gate asks for figures of generated answers ({', '.join(figures)}), and {what} "
            "keeps no texts",
            hint="give its run folder in place of the history, or name the model itself",
        )
    asks_for_answers = any(limit.metric == OF_ANSWERS for limit in gate.limits)
    if asks_for_answers and not shown:
        instead = "give its run folder in place of the history" if is_baseline else instead
        raise UsageError(
            f"the gate has a limit on {OF_ANSWERS}, and {what} keeps no answers",
            hint=f"{instead}, or leave out the limit",
        )


def _distribution_limits(gate: Gate) -> str:
    return ", ".join(limit.metric for limit in gate.limits if limit.of_distributions)


_CONFIG_FILE = "config.json"
_QUANTISATION = "quantization_config"
_ONLINE_HINT = "give a path, or go online and try again"


def check_models(sources: Iterable[ModelSource]) -> None:
    """Refuse models that can be seen to be none, before the first one is loaded and scored.

    Raises:
        UsageError: for a folder or hub id that leads nowhere, a folder that holds no model, a
            model type whose numbers are wrong, or an argument that it does not take so.
        EvaluationError: for weights that are damaged, or pickled and not allowed to be; for an
            address where no server is.
        SettingError: for settings that contradict each other.
    """
    for source in sources:
        with with_location(source):
            variant = source.variant
            check_type(variant.model)
            plan = plan_conversion(variant)
            arguments = plan.model_args
            check_served(variant)
            check_runtime(variant)
            if variant.model not in HF_TYPES and not is_runtime(variant):
                check_engine(variant.model)
            if variant.model in CLIENT_TYPES and variant.serve is None:
                _check_server(str(arguments.get("base_url") or ""))
            _check_arguments(variant, arguments)
            # What a recipe builds is not there yet; other model types read names their own way.
            if variant.build is not None:
                continue
            if is_runtime(variant):
                _check_runtime_file(variant.model, arguments)
            if variant.model in HF_TYPES:
                _check_model(arguments, allow_pickle=variant.allow_pickle)
                # An environment of its own has another transformers.
                edited = any(path.startswith(_QUANTISATION) for path in plan.config_overrides)
                if variant.environment is None and not edited:
                    _check_quantisation(arguments)


def _check_arguments(variant: Variant, arguments: Mapping[str, Value]) -> None:
    """Refuse what `evalguard check` refuses of a model's arguments, those of settings included."""
    own = variant.environment is not None and variant.serve is None
    kind = "transformers" if own and variant.model in HF_TYPES else variant.model
    folder = f"{arguments.get('pretrained')}/{arguments.get('subfolder') or ''}"
    here = variant.build is None and Path(folder, _CONFIG_FILE).expanduser().is_file()
    for name, value in arguments.items():
        name, _, inner = name.partition(".")
        if name != "trust_remote_code":  # a permission, and no argument
            check_argument(
                kind,
                name,
                None if inner else value,
                folder=Path(folder).expanduser() if here else None,
                code_allowed=variant.trust_remote_code,
                runs_here=not own,
            )


def _check_runtime_file(model_type: str, arguments: Mapping[str, Value]) -> None:
    """Refuse a file or folder that is not there, or is none of what its type reads."""
    named = str(arguments.get("pretrained") or "")
    if not (is_written_as_path(named) or Path(named).expanduser().exists()):
        return  # of the hub, which its own environment asks
    given = RuntimeArguments(model_type=model_type, given=arguments)
    if model_type == "llama_cpp":
        check_gguf_header(find_model_file(given))
    elif model_type in ("onnx", "openvino"):
        find_graph(given)
    else:
        given.path()


def _check_model(arguments: Mapping[str, Value], *, allow_pickle: bool) -> None:
    name = arguments.get("pretrained")
    if not (isinstance(name, str) and name):
        raise UsageError("model_args name no 'pretrained' model", hint="a folder or a hub id")
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


def _check_server(address: str) -> None:
    """Refuse an address where nothing listens, before the other side has been scored.

    Whatever else may be wrong with a server, or lie behind a proxy, is for its client to say.

    Raises:
        EvaluationError: the connection is refused, or the host is not known.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return
    if not host or (getproxies() and not proxy_bypass(host)):
        return
    try:
        socket.create_connection((host, port), timeout=HUB_TIMEOUT).close()
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise EvaluationError(
            f"no server answers at {redacted_text(address)}", hint=UNREACHABLE_HINT
        ) from error
    except OSError:
        return


def _check_quantisation(arguments: Mapping[str, Value]) -> None:
    name, subfolder = str(arguments.get("pretrained") or ""), str(arguments.get("subfolder") or "")
    revision = str(arguments.get("revision") or "main")
    folder = checkpoint_folder(name, revision, subfolder) if name else None
    if folder is not None and not arguments.get("gguf_file"):
        check_quantisation(name, folder / subfolder / _CONFIG_FILE, arguments)


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


def _answers(address: str) -> bool:
    """Whether anything answers there, whatever it says: asked once, through proxies as they are."""
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=HUB_TIMEOUT)
    except Exception:  # noqa: BLE001 - of requests or httpx, as the library's version has it
        return False
    return True


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
    revision = str(arguments.get("revision") or "main")
    subfolder = str(arguments.get("subfolder") or "")
    # The library asks six times, aloud, for half a minute, where nothing is there to answer.
    if not constants.HF_HUB_OFFLINE and not _answers(constants.ENDPOINT):
        if hub_snapshot(name, revision, subfolder) is not None:
            return
        raise EvaluationError(f"{absent}; the hub cannot be reached", hint=_ONLINE_HINT)
    try:
        hf_hub_download(name, _CONFIG_FILE, revision=revision, subfolder=subfolder or None)
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
        raise EvaluationError(f"{absent}; the hub cannot be reached", hint=_ONLINE_HINT) from error
    except (EntryNotFoundError, HfHubHTTPError, HFValidationError, OSError):
        return


def check_sequential(
    sources: Sequence[Source], choices: Choices, options: CompareOptions
) -> Choices:
    """Refuse what a sequential run cannot promise; return the choices with what it leaves out.

    Raises:
        UsageError: naming the option.
    """
    if choices.sequential_alpha is None:
        if options.sequential_alpha is not None:
            raise UsageError("sequential_alpha has no effect without sequential", hint="give both")
        return choices
    for problem, hint in _unsupported_choices(choices, options):
        raise UsageError(problem, hint=hint)
    note = (
        "distributions are not compared: a sequential run asks for scores alone; broken documents "
        "are looked for among those that it asks"
    )
    if not can_stop_early(sources, choices):
        note = (
            "both sides are finished runs: stopping early would save nothing, so that all "
            "documents are compared"
        )
    return replace(choices, notes=(*choices.notes, note))


def _unsupported_choices(choices: Choices, options: CompareOptions) -> Iterator[tuple[str, str]]:
    """What was asked for that a part of the documents cannot tell, each with what to do."""
    alpha, gate = choices.sequential_alpha, choices.gate
    if alpha is not None and not 0.0 < alpha < 0.5:
        yield f"a chance of error lies between 0 and 0.5, not {alpha:g}", "0.05, say"
    if choices.task_options.seed < 0:
        yield f"no order of documents has the seed {choices.task_options.seed}", "0 or more"
    if gate.fail_on not in ("real", "margin"):
        yield (
            "--sequential tells the verdict of fail_on real or margin early, and not that of "
            f"{gate.fail_on}",
            "leave out one of the two",
        )
    if gate.limits or choices.distributions.mode in ("lockstep", "reference"):
        yield (
            "--sequential tells early on which side of the margin all documents lie; distributions "
            "and absolute limits of the gate need all of them",
            "leave out --sequential, or --distributions and the gate's limits",
        )
    if options.strict or gate.undecided == "fail":
        yield (
            "--sequential tells early on which side of the margin all documents lie, and not "
            "whether they would be too few to decide anything else",
            "leave out --sequential, or --strict (undecided: fail in the guard file)",
        )


def can_stop_early(sources: Sequence[Source], choices: Choices) -> bool:
    """Whether a sequential run was asked for, and has any model that could be asked less."""
    asked = choices.sequential_alpha is not None
    return asked and any(isinstance(source, ModelSource) for source in sources)
