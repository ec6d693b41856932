"""CompareOptions: everything a user may say about a comparison beside its two sides.

Each option is declared here, and nowhere else: see ``config/declared_options.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from evalguard.config.declared_options import declare, declared_keys, declared_options
from evalguard.config.inline_models import parse_model_args
from evalguard.core.option_words import FailOn, Format, RollingBos, ScorerName
from evalguard.core.repeat_command import DEFAULT_RUN_FOLDERS
from evalguard.core.settings import Assignment, Value
from evalguard.core.tracked_run import BUILT_IN_TRACKERS
from evalguard.errors import UsageError, nearest

WorkerUse = Literal["auto", "always"]
DistributionMode = Literal["auto", "lockstep", "reference", "off"]
MemoryUse = Literal["auto", "lockstep", "sequential"]
BisectUse = Literal["auto", "never", "always"]
BisectOver = Literal["settings", "layers", "modules"]
# What a user may declare to differ; settings under test excuse their own differences.
MayDiffer = Literal["prompt", "tokens"]
# Name of a metric or figure -> its limit, its margin ("1pp"); None: it is gated by the default one.
AskedMetrics = Mapping[str, float | str | None]
# Where run folders go unless ``output_path`` says so.
DEFAULT_OUTPUT = Path(DEFAULT_RUN_FOLDERS)
NO_HISTORY = Path("none")  # in place of a history's file: none, whatever the guard file says


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of ``compare``; None and empty mean: as the guard file says, else the default.

    What each one means stands with it: ``help`` is what the command line says, ``key`` what the
    guard file's schema says. Beside these:

    Attributes:
        config: guard file; None: ./evalguard.yaml, else ./configs/, else the built-in demo.
        base_set, cand_set: values for settings of each side: ``{"norm_dtype": "reference"}``;
            "reference" and "candidate" stand for the setting's declared values.
        gate_limits: absolute limits, ``{"kl_mean": 0.01, "loops": 0, "cut": "2%"}``, added to those
            of the guard file or in place of them (``evalguard.core.limits.KINDS`` has the names);
            a margin of a metric or of a figure of generated answers, ``{"cut": "1pp"}``; None: a
            figure is gated as metrics are, ``{"loops": None}``.
        use_cache: whether scores are read from the cache, and stored there.
        today: the day, YYYY-MM-DD, on which waivers count or have expired; "": the day, in UTC, on
            which the comparison begins.
        write: whether to write a run folder.
        command: the command line, for the record.
    """

    config: Path | None = declare(
        None, group="Models", metavar="FILE", help="Guard file. Default: evalguard.yaml, configs/*."
    )
    tasks: tuple[str, ...] = declare(
        (),
        group="Tasks and prompts",
        kind="names",
        metavar="TASK,...",
        help="lm-eval tasks, tags or groups. Default: the guard file's.",
    )
    include_path: tuple[Path, ...] = declare(
        (),
        group="Tasks and prompts",
        metavar="FOLDER",
        help="Folder with more task files. Repeatable.",
    )
    requests: Path | None = declare(
        None,
        group="Tasks and prompts",
        metavar="FILE",
        help="Chat requests in OpenAI's form, one a line.",
    )
    model: str = declare(
        "hf",
        group="Models",
        metavar="TYPE",
        shows_default=True,
        help="Model type of folders, hub ids and URLs, unless TYPE:MODEL says it. A GGUF, a "
        "graph and a URL tell their own.",
    )
    base_model_args: Mapping[str, Value] = declare(
        {},
        group="Models",
        kind="arguments",
        help="Model arguments of the base, in addition to the guard file's.",
    )
    cand_model_args: Mapping[str, Value] = declare(
        {},
        group="Models",
        kind="arguments",
        help="Model arguments of the candidate, in addition to the guard file's.",
    )
    cand_set: Assignment = declare(
        {},
        group="Models",
        flags=("--set",),
        kind="settings",
        help="Give a setting of the candidate a value: reference, candidate or another. "
        "Repeatable.",
    )
    base_set: Assignment = declare(
        {}, group="Models", kind="settings", help="Give a setting of the base a value. Repeatable."
    )
    limit: float | None = declare(
        None,
        group="Tasks and prompts",
        kind="limit",
        help="First N documents per task, or a share (0.1).",
        key="First documents of each task, or a share.",
        harmless="chooses documents",
    )
    num_fewshot: int | None = declare(
        None,
        group="Tasks and prompts",
        metavar="N",
        at_least=0,
        help="Number of few-shot examples in the prompt. Default: the task's.",
        key="Few-shot examples.",
        harmless="chooses prompts",
    )
    seed: int | None = declare(
        None,
        group="Tasks and prompts",
        metavar="N",
        at_least=0,
        help="Seed of few-shot examples, sampling and the order of documents.",
        key="Seed of few-shot and document order.",
        harmless="chooses few-shot examples and the order of documents",
    )
    apply_chat_template: bool | str | None = declare(
        None,
        group="Tasks and prompts",
        kind="chat_template",
        help="Use the chat template of each model.",
        key="Whether to apply the chat template, or which one.",
        harmless="chooses a template of the model's own, rendered in a sandbox",
    )
    system_instruction: str | None = declare(
        None, key="System message of the prompt.", example="TEXT", harmless="is part of the prompt"
    )
    fewshot_as_multiturn: bool | None = declare(
        None,
        key="Write few-shot examples as turns of a conversation.",
        example="true",
        harmless="chooses the form of prompts",
    )
    gen_kwargs: Mapping[str, Value] = declare(
        {},
        group="Tasks and prompts",
        kind="arguments",
        help="Generation arguments, in addition to the task's.",
    )
    confirm_run_unsafe_code: bool = declare(
        False, group="Tasks and prompts", help="Allow tasks that execute what the model writes."
    )
    batch_size: int | Literal["auto"] | None = declare(
        None,
        group="Speed and memory",
        kind="batch_size",
        metavar="N|auto",
        help="Sequences per forward pass, for both models. Default auto: measured on the device.",
        key="Sequences per forward pass; auto (the default): as many as the token budget has "
        "room for.",
        harmless="chooses how many sequences a forward pass has",
    )
    token_budget: int | None = declare(
        None,
        at_least=0,
        expected="a number of tokens, 0 or more",
        key="Padded tokens per forward pass; 0 (the default): measured on this device.",
        example="N",
        harmless="chooses how many tokens a forward pass has",
    )
    scorer: ScorerName | None = declare(
        None,
        group="Scoring",
        help="Scoring code for Hugging Face models: evalguard's (fast, the default) or "
        "lm-eval's (harness).",
        key="How Hugging Face models are scored: fast (the default), or by lm-eval's own path.",
        harmless="chooses between two ways to the same scores",
    )
    share_prefixes: bool | None = declare(
        None,
        key="Whether what several continuations have before them is read once (the default), "
        "where the model proves to give the same scores.",
        example="true",
        harmless="chooses between two ways to the same scores",
    )
    rolling_bos: RollingBos | None = declare(
        None,
        key="Whole texts whose tokenizer adds BOS: lm-eval (the default) counts BOS given BOS "
        "as lm-eval does, once begins with the first real token.",
        example="once",
        harmless="chooses how whole texts begin",
    )
    device: str = declare(
        "",
        group="Speed and memory",
        metavar="NAME",
        help="cpu, cuda, cuda:1, mps. Default: cuda if any.",
        key="cpu, cuda, cuda:1, mps.",
        harmless="chooses a device of this machine",
    )
    threads: int = declare(
        0,
        group="Speed and memory",
        metavar="N",
        at_least=0,
        expected="a number, 0 or more",
        help="CPU threads. Default 0: chosen automatically.",
    )
    trust_remote_code: bool = declare(
        False, group="Models", help="Run the Python code that comes with a model."
    )
    allow_code: bool = declare(
        False,
        group="Models",
        help="Run the code of a guard file that was found, not named with --config.",
    )
    worker: WorkerUse | None = declare(
        None,
        repeated=False,
        key="Score in worker processes: always, or only where a setting needs one (auto, the "
        "default).",
        example="always",
        harmless="chooses whether models have a process of their own",
    )
    timeout: float | None = declare(
        None,
        repeated=False,
        above=0,
        expected="a number of seconds above 0",
        key="Seconds that one request to a worker may take; default: no limit.",
        example="SECONDS",
        harmless="ends what takes long",
    )
    execution: str = declare(
        "",
        group="Speed and memory",
        kind="execution",
        metavar="PLACE",
        help="Where models run: here (default), ray (a local Ray), ray://HOST:PORT, "
        "ray://auto; 'ray?actors=4&num_gpus=1' says how much.",
        key="Where models run: here (the default), ray (a local Ray), ray://HOST:PORT or "
        "ray://auto (a Ray cluster).",
    )
    allow_differing: frozenset[MayDiffer] = declare(
        frozenset(),
        group="Tasks and prompts",
        help="Accept that prompts or token ids of the two sides differ (tokens: the versions "
        "of lm-eval of finished runs, too). Repeatable.",
    )
    cluster: str = declare(
        "",
        group="Gate and statistics",
        metavar="FIELD",
        help="Treat documents with the same value of FIELD (a passage, say) as dependent.",
    )
    floor: Path | None = declare(
        None,
        group="Noise floor",
        metavar="FILE",
        help="Compare the drift with a measured floor (evalguard floor --json).",
    )
    distributions: DistributionMode | None = declare(
        None,
        group="Distributions",
        kind="distributions",
        help="Compare the models' token distributions: with both models loaded (lockstep), or "
        "one after the other (reference). Default auto: lockstep where both fit.",
        key="How the two models' distributions are compared: lockstep, reference, off, or auto "
        "(lock-step where it is possible).",
        harmless="chooses how the two models' distributions are compared",
    )
    save_reference: Path | None = declare(
        None,
        group="Distributions",
        metavar="FILE",
        help="Write the base's answers and distributions to FILE: --base FILE then needs no model.",
    )
    reference_top_k: int | None = declare(
        None,
        at_least=1,
        expected="a number of tokens",
        key="Tokens of the base that a reference keeps.",
        example="N",
        harmless="chooses how many tokens a reference keeps",
    )
    memory: MemoryUse | None = declare(
        None,
        repeated=False,
        key="Both models loaded (lockstep), one after the other (sequential), or auto: both "
        "where they fit.",
        example="sequential",
        harmless="chooses whether both models are loaded at the same time",
    )
    verify_scorer: int = declare(
        0,
        group="Scoring",
        metavar="N",
        at_least=0,
        expected="a number, 0 or more",
        help="Score N documents per task again with lm-eval; a difference is an error.",
    )
    margin: float | str | None = declare(
        None,
        group="Gate and statistics",
        kind="margin",
        metavar="N|Npp|N%",
        help="Allowed drift: standard errors of the base (1), points (1pp), relative (2%). "
        "Default 1.",
        key="Tolerated drift: in standard errors of the base model (1.0), points (1pp) or "
        "relative to the base's value (2%).",
        section="gate",
        harmless="judges numbers",
    )
    fail_on: FailOn | None = declare(
        None,
        group="Gate and statistics",
        help="What fails. Default real: above the margin, and the paired test calls it real.",
        key="What fails: real (above the margin, and its interval, Holm-adjusted over all "
        "gated metrics, above 0), margin (above the margin), significant (its own interval above "
        "0), certain (the whole interval above the margin), any-degradation (real ones within it "
        "too).",
        section="gate",
        harmless="judges numbers",
    )
    confidence: float | None = declare(
        None,
        group="Gate and statistics",
        kind="confidence",
        metavar="P",
        above=0,
        below=1,
        help="Confidence level of the intervals. Default 0.95.",
        key="Of the interval of the drift, and so of what is real: at 0.90 more is found, "
        "and an unchanged candidate fails in 5% of cases, not 2.5%.",
        section="gate",
        harmless="judges numbers",
    )
    broken_documents: int | None = declare(
        None,
        at_least=0,
        expected="a number, 0 or more",
        key="How many documents may be broken: the candidate gives what it is asked far "
        "less than chance, or no finite score, and the base does not.",
        section="gate",
        example="N",
        harmless="judges numbers",
    )
    gate_limits: AskedMetrics = declare(
        {},
        group="Gate and statistics",
        flags=("--gate-metric",),
        kind="gate_metrics",
        help="Limit on a figure: kl_mean=0.01, loops=0, gsm8k/valid_json=0.99; margin on one: "
        "cut=1pp; a figure of answers gated like a metric: loops. Repeatable.",
    )
    sequential: bool | None = declare(
        None,
        group="Speed and memory",
        help="Stop a task as soon as the verdict on all its documents is certain enough.",
        key="Stop a task as soon as the verdict of all its documents is known.",
        harmless="stops early",
    )
    sequential_alpha: float | None = declare(
        None,
        above=0,
        below=0.5,
        key="Probability of a wrong early verdict; default 0.05.",
        example="P",
        harmless="stops earlier or later",
    )
    bisect: BisectUse | None = declare(
        None,
        group="Bisection",
        metavar="[auto|always|never]",
        repeated=False,
        help="Search the settings for culprits. Default auto: if the gate fails and the "
        "candidate declares settings.",
        key="Look for the settings that make the drift: auto (the default: where the gate "
        "fails and the candidate declares settings), always, never.",
        harmless="chooses whether settings are searched",
    )
    bisect_budget: float | None = declare(
        None,
        group="Bisection",
        flags=("--budget",),
        metavar="EVALUATIONS",
        at_least=0,
        expected="a number of evaluations",
        repeated=False,
        help="Most full evaluations that the search may spend. Default: no limit.",
        key="Full evaluations that may be spent.",
        example="N",
        harmless="is how much a search may cost",
    )
    bisect_thorough: bool | None = declare(
        None,
        group="Bisection",
        flags=("--thorough/--no-thorough",),
        repeated=False,
        help="Also prove small effects; costs more evaluations.",
        key="Be surer of small effects, and spend more.",
        example="true",
        harmless="is how much a search may cost",
    )
    bisect_jobs: int | None = declare(
        None,
        group="Bisection",
        flags=("--jobs",),
        metavar="N",
        at_least=1,
        expected="a number of probes",
        repeated=False,
        help="Models that are evaluated at the same time. Default 1.",
        key="Probes at the same time.",
        example="N",
        harmless="is how many probes are made at the same time, on this machine",
    )
    bisect_over: BisectOver | None = declare(
        None,
        group="Bisection",
        flags=("--over",),
        metavar="WHAT",
        repeated=False,
        help="What to search: settings, layers or modules.",
        key="What is searched: settings (the default), or which layers or modules of the "
        "candidate's model make the drift.",
        example="layers",
        harmless="chooses what is searched",
    )
    strict: bool = declare(
        False, group="Gate and statistics", help="Exit with 4 where the verdict is undecided."
    )
    git_bisect: bool = declare(
        False,
        group="Gate and statistics",
        repeated=False,
        help="Exit codes for git bisect run: 125 where there is no verdict.",
    )
    output_path: Path | None = declare(
        None,
        group="Output",
        metavar="FOLDER",
        repeated=False,
        help="Folder of run folders. Default: ./reports.",
    )
    output: tuple[Path, ...] = declare(
        (),
        group="Output",
        flags=("-o", "--output"),
        metavar="FILE",
        repeated=False,
        help="Write the report to FILE: .html, .md, .json, .xml or .txt. Repeatable.",
    )
    output_format: Format | None = declare(
        None,
        group="Output",
        flags=("--format",),
        repeated=False,
        help="Format of every -o FILE, whatever its suffix; without -o, of the printed report.",
    )
    cache_dir: Path | None = declare(
        None,
        group="Cache",
        metavar="FOLDER",
        help="Folder of the score cache. Default: in the user's cache.",
    )
    cache_max_size: int | str | None = declare(
        None,
        kind="size",
        repeated=False,
        key="How large the cache may be after a run, such as 20GB; default: no limit.",
        example="20GB",
    )
    use_cache: bool = declare(
        True,
        group="Cache",
        flags=("--no-cache",),
        help="Score everything again, and store no scores.",
    )
    history: Path | None = declare(
        None,
        group="History and tracking",
        metavar="FILE|none",
        repeated=False,
        help="Add this run to a history, or to none. Default: the guard file's, else none.",
        key="sqlite file that every comparison is added to (evalguard history shows it), or "
        "none; relative paths start at this file.",
    )
    track: tuple[str, ...] = declare(
        (),
        group="History and tracking",
        kind="track",
        metavar="NAME",
        repeated=False,
        help=f"Send the finished run to a tracker: {', '.join(BUILT_IN_TRACKERS)}, one that "
        "another package brings, or none. Repeatable. Default: W&B where it is configured.",
        key="Experiment trackers that a finished run is sent to: "
        f"{', '.join(BUILT_IN_TRACKERS)}, those of other packages, or none; default: W&B where "
        "it is configured.",
    )
    track_documents: bool = declare(
        False,
        repeated=False,
        key="Send trackers the documents, too: prompts, answers and the files of the run "
        "folder; default: figures, tables and plots alone.",
        example="true",
    )
    today: str = declare("", kind="day", repeated=False)
    write: bool = declare(True, repeated=False)
    quiet: bool = declare(
        False, group="Output", flags=("--quiet", "-q"), repeated=False, help="Show no progress."
    )
    command: str = declare("", repeated=False)

    def __post_init__(self) -> None:
        """Check what was given; limit and gate are checked with the guard file's.

        Raises:
            UsageError: naming the option and the value.
        """
        for name, declared in declared_options(type(self)).items():
            value = getattr(self, name)
            if value != declared.default:
                declared.check(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(CompareOptions):
    """What ``run`` of a guard file says: options, and what no command has a flag for."""

    actors: int | None = declare(
        None,
        at_least=1,
        key="Ray: actors at the same time; default: one for every GPU, else one for every machine.",
        harmless="is how many actors a Ray has that was started here, or trusted",
    )
    num_gpus: float | None = declare(
        None,
        at_least=0,
        key="Ray: GPUs of each actor; default: 1.",
        harmless="places actors of a Ray that was started here, or trusted",
    )
    num_cpus: float | None = declare(
        None,
        at_least=0,
        key="Ray: CPUs of each actor; default: 1.",
        harmless="places actors of a Ray that was started here, or trusted",
    )
    memory_each: int | str | None = declare(
        None,
        kind="size",
        key="Ray: memory that each actor is placed by, such as 32GB.",
        harmless="places actors of a Ray that was started here, or trusted",
    )
    pair_hours: float | None = declare(
        None,
        at_least=0,
        key="Hours that evalguard nightly gives each pair, and its bisection again; 0: any "
        "number; default: 12.",
        harmless="ends what takes long",
    )


def make_options(options: CompareOptions | None, **given: Any) -> CompareOptions:
    """Return options with fields overridden; a text stands for a sequence of one, or a path.

    Raises:
        UsageError: for a field that does not exist, with the nearest one, or a value of a kind
            that it cannot have.
    """
    options = options or CompareOptions()
    declared = declared_options(type(options))
    for name in given:
        if name not in declared:
            raise UsageError(f"compare() has no option '{name}'{nearest(name, declared)}")
    return replace(options, **{name: declared[name].read(value) for name, value in given.items()})


def with_run_of(guard_run: CompareOptions, options: CompareOptions) -> CompareOptions:
    """The options, and where they say nothing what ``run`` of the guard file says."""
    inherited = {
        name: getattr(guard_run, name)
        for name, declared in declared_keys(type(options), "run").items()
        if getattr(options, name) in (declared.default, "")
    }
    return replace(options, **inherited)


def parse_arguments(text: str, *, where: str) -> dict[str, Value]:
    """Return the arguments in ``text``; ``where`` names the option in error messages.

    Raises:
        UsageError: if the text is neither form.
    """
    return dict(parse_model_args(text, where=where)) if text else {}


def describe_options(
    options: CompareOptions, *, told_path: Callable[[Path], str] = str
) -> dict[str, Any]:
    """The options that are not the default's, as JSON values.

    Args:
        told_path: how a path is written.
    """
    return {
        name: _plain_value(value, str if name == "history" and value == NO_HISTORY else told_path)
        for name, declared in declared_options(type(options)).items()
        if (value := getattr(options, name)) != declared.default
    }


def _plain_value(value: Any, told_path: Callable[[Path], str]) -> Any:
    if isinstance(value, Path):
        return told_path(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, told_path) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
