"""CompareOptions: everything a user may say about a comparison beside its two sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args

from evalguard.config.inline_models import parse_model_args
from evalguard.core.compare_report import Format
from evalguard.core.repeat_command import DEFAULT_RUN_FOLDERS
from evalguard.core.scorer import RollingBos, ScorerName
from evalguard.core.settings import Assignment, Value
from evalguard.engine.tracker_choice import check_track
from evalguard.errors import UsageError, nearest
from evalguard.worker.ray_plan import RayPlan

WorkerUse = Literal["auto", "always"]
DistributionMode = Literal["auto", "lockstep", "reference", "off"]
MemoryUse = Literal["auto", "lockstep", "sequential"]
BisectUse = Literal["auto", "never", "always"]
BisectOver = Literal["settings", "layers", "modules"]
# Name of a metric or figure -> its limit, its margin ("1pp"); None: it is gated by the default one.
AskedMetrics = Mapping[str, float | str | None]
# What a user may declare to differ; settings under test excuse their own differences.
MAY_DIFFER = frozenset({"prompt", "tokens"})
# Where run folders go unless ``output_path`` says so.
DEFAULT_OUTPUT = Path(DEFAULT_RUN_FOLDERS)
# What is compared with numbers, so that a text would fail there, without its name.
_NUMBERS = (
    "limit", "num_fewshot", "seed", "timeout", "confidence", "sequential_alpha",
    "bisect_budget",
)  # fmt: skip
_MAPPINGS = (
    "base_model_args", "cand_model_args", "base_set", "cand_set", "gen_kwargs", "gate_limits",
)  # fmt: skip
_SEQUENCES = ("tasks", "include_path", "allow_differing", "output", "track")
_PATHS = (
    "config", "requests", "save_reference", "output_path", "cache_dir", "floor", "history",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of ``compare``; None and empty mean: as the guard file says, else the default.

    Attributes:
        config: guard file; None: ./evalguard.yaml, else ./configs/, else the built-in demo.
        tasks: lm-eval task names; empty: the pair's, else the guard file's, else those of a
            stored run.
        requests: file of chat requests, one a line in OpenAI's form: a task of the file's name, and
            the only one where ``tasks`` is empty.
        include_path: folders with further lm-eval task files.
        model: lm-eval model type of a base or candidate given as a path or hub id.
        base_model_args, cand_model_args: model_args added to (or overriding) each side's own.
        base_set, cand_set: values for settings of each side: ``{"norm_dtype": "reference"}``;
            "reference" and "candidate" stand for the setting's declared values.
        limit: the first N documents of each task, or a share below 1.
        num_fewshot, seed, apply_chat_template, system_instruction, fewshot_as_multiturn,
        gen_kwargs, confirm_run_unsafe_code: as in lm-eval.
        batch_size: sequences per forward pass, the same for both; "auto": as many as the token
            budget has room for.
        token_budget: padded tokens per forward pass, the same for both; 0: what was measured to be
            best on this device.
        scorer: "harness" scores Hugging Face models by lm-eval's own path; None: "fast".
        share_prefixes: read what several continuations have before them once, where a model proves
            to give the same scores; None: yes.
        rolling_bos: whole texts whose tokenizer adds BOS: "lm-eval" counts BOS given BOS as lm-eval
            does, "once" begins with the first real token; None: "lm-eval".
        device: "cpu", "cuda", ...; "" = CUDA if there is one.
        threads: CPU threads of torch; 0: one for a model below 20 million parameters, else
            torch's own number.
        trust_remote_code, allow_code: let a hub model's code, a guard file's code run.
        worker: "always" scores in worker processes; "auto" only where a setting needs one; None:
            "auto".
        timeout: seconds that one call to a worker may take; None: no limit.
        execution: where models run: "here", "ray" (a local Ray), "ray://HOST:PORT", "ray://auto",
            each Ray with "?actors=4&num_gpus=1&num_cpus=2&memory=BYTES" where that is to be said.
        allow_differing: "prompt" and "tokens", differences between the sides that are meant.
        cluster: field of the documents that says which of them share something and are not
            independent, for every task that has it; "": as the guard file's ``clusters`` say.
        floor: document of a measured A/A floor (``evalguard floor --json``) to hold the drift
            against; None: the one that was kept for this base in this environment, if any.
        distributions: how the two models' distributions are compared: "lockstep" (both loaded),
            "reference" (the base first, which leaves a reference), "off", or "auto": lock-step
            where it is possible.
        save_reference: file that the base's answers and distributions are written to, for a
            ``base`` where its model is not at hand. Implies distributions="reference".
        reference_top_k: tokens of the base that a reference keeps at every position; None: 64.
        memory: "lockstep" loads both models, "sequential" one after the other; "auto": both where
            they fit.
        verify_scorer: documents per task, drawn with the seed, scored once more by lm-eval's own
            path; other scores are an error; 0: none.
        margin, fail_on, confidence: of the gate; a margin of "1pp" is in points, one of "2%"
            relative to the base's value.
        broken_documents: how many documents may be broken; None: as the guard file says, else 0.
        gate_limits: absolute limits, ``{"kl_mean": 0.01, "loops": 0, "cut": "2%"}``, added to those
            of the guard file or in place of them (``evalguard.core.limits.KINDS`` has the names);
            a margin of a metric or of a figure of generated answers, ``{"cut": "1pp"}``; None: a
            figure is gated as metrics are, ``{"loops": None}``.
        sequential: stop a task as soon as the verdict of all its documents is known;
            sequential_alpha: probability of a wrong early verdict; None: 0.05.
        bisect: look for the settings that make the drift: "auto" where the gate fails and the
            candidate declares settings; "always" also where it passes, and with settings derived
            from the two models; "never". bisect_budget: full evaluations that may be spent;
            bisect_thorough: be surer of small effects; bisect_jobs: probes at the same time.
            bisect_over: "layers" or "modules" searches which part of the candidate makes the
            drift, in place of its settings.
        strict: undecided fails. git_bisect: exit codes for ``git bisect run``.
        output_path: where run folders go; None: ./reports.
        output: files that the report is written to, each in the format that its suffix says, or
            in output_format ("text", "json", ...).
        cache_dir: score and build cache; None: the user's cache folder. use_cache: score cache.
        cache_max_size: how large it may be after the run, "20GB" or bytes; None: as the variable
            EVALGUARD_CACHE_MAX_SIZE says, else no limit.
        history: sqlite file that the run is added to; None: the guard file's, else none.
            use_history: False: none, whatever the guard file says.
        track: experiment trackers that the finished run is sent to: "wandb", "trackio",
            "mlflow"; or "none"; empty: the guard file's, else W&B where it is configured.
        track_documents: send prompts, answers and the run's files there, too, and not figures,
            tables and plots alone.
        today: the day, YYYY-MM-DD, on which waivers count or have expired; "": the day, in UTC, on
            which the comparison begins.
        write: whether to write a run folder. quiet: no progress on stderr.
        command: the command line, for the record.
    """

    config: Path | None = None
    tasks: tuple[str, ...] = ()
    requests: Path | None = None
    include_path: tuple[Path, ...] = ()
    model: str = "hf"
    base_model_args: Mapping[str, Value] = field(default_factory=dict)
    cand_model_args: Mapping[str, Value] = field(default_factory=dict)
    base_set: Assignment = field(default_factory=dict)
    cand_set: Assignment = field(default_factory=dict)
    limit: float | None = None
    num_fewshot: int | None = None
    seed: int | None = None
    apply_chat_template: bool | str | None = None
    system_instruction: str | None = None
    fewshot_as_multiturn: bool | None = None
    gen_kwargs: Mapping[str, Value] = field(default_factory=dict)
    confirm_run_unsafe_code: bool = False
    batch_size: int | Literal["auto"] | None = None
    token_budget: int | None = None
    scorer: ScorerName | None = None
    share_prefixes: bool | None = None
    rolling_bos: RollingBos | None = None
    device: str = ""
    threads: int = 0
    trust_remote_code: bool = False
    allow_code: bool = False
    worker: WorkerUse | None = None
    timeout: float | None = None
    execution: str = ""
    allow_differing: frozenset[str] = frozenset()
    cluster: str = ""
    floor: Path | None = None
    distributions: DistributionMode | None = None
    save_reference: Path | None = None
    reference_top_k: int | None = None
    memory: MemoryUse | None = None
    verify_scorer: int = 0
    margin: float | str | None = None
    fail_on: str | None = None
    confidence: float | None = None
    broken_documents: int | None = None
    gate_limits: AskedMetrics = field(default_factory=dict)
    sequential: bool | None = None
    sequential_alpha: float | None = None
    bisect: BisectUse | None = None
    bisect_budget: float | None = None
    bisect_thorough: bool | None = None
    bisect_jobs: int | None = None
    bisect_over: BisectOver | None = None
    strict: bool = False
    git_bisect: bool = False
    output_path: Path | None = None
    output: tuple[Path, ...] = ()
    output_format: Format | None = None
    cache_dir: Path | None = None
    cache_max_size: int | str | None = None
    use_cache: bool = True
    history: Path | None = None
    use_history: bool = True
    track: tuple[str, ...] = ()
    track_documents: bool = False
    today: str = ""
    write: bool = True
    quiet: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        """Refuse at once what would otherwise be noticed after hours of scoring, or never.

        Limit and gate are checked with the guard file's, before anything runs.

        Raises:
            UsageError: naming the option and the value.
        """
        for name in _NUMBERS:
            if not _is_number(getattr(self, name)):
                raise _refuse(name, getattr(self, name), "a number")
        for name in ("seed", "num_fewshot"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, Integral)):
                raise _refuse(name, value, "a whole number")
        for name in _MAPPINGS:
            if not isinstance(getattr(self, name), Mapping):
                raise _refuse(name, getattr(self, name), "a mapping, {'name': value}")
        auto = self.batch_size in (None, "auto")
        if not auto and not _is_count(self.batch_size, 1):
            raise _refuse("batch_size", self.batch_size, "a number of sequences or 'auto'")
        if self.scorer not in (None, *get_args(ScorerName)):
            raise _refuse("scorer", self.scorer, " or ".join(get_args(ScorerName)))
        if self.rolling_bos not in (None, *get_args(RollingBos)):
            raise _refuse("rolling_bos", self.rolling_bos, " or ".join(get_args(RollingBos)))
        if self.token_budget is not None and not _is_count(self.token_budget, 0):
            raise _refuse("token_budget", self.token_budget, "a number of tokens, 0 or more")
        for name in ("threads", "verify_scorer"):
            if not _is_count(getattr(self, name), 0):
                raise _refuse(name, getattr(self, name), "a number, 0 or more")
        if self.broken_documents is not None and not _is_count(self.broken_documents, 0):
            raise _refuse("broken_documents", self.broken_documents, "a number, 0 or more")
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise _refuse("timeout", self.timeout, "a number of seconds above 0")
        if self.worker not in (None, *get_args(WorkerUse)):
            raise _refuse("worker", self.worker, " or ".join(get_args(WorkerUse)))
        if self.execution not in ("", "here"):
            RayPlan.parse(self.execution)
        if self.distributions not in (None, *get_args(DistributionMode)):
            modes = ", ".join(get_args(DistributionMode))
            raise _refuse("distributions", self.distributions, f"one of {modes}")
        if self.memory not in (None, *get_args(MemoryUse)):
            raise _refuse("memory", self.memory, f"one of {', '.join(get_args(MemoryUse))}")
        self._check_bisect()
        if self.today and not _is_day(self.today):
            raise _refuse("today", self.today, "a day, YYYY-MM-DD")
        check_track(self.track)
        if self.reference_top_k is not None and not _is_count(self.reference_top_k, 1):
            raise _refuse("reference_top_k", self.reference_top_k, "a number of tokens")
        for item in sorted(self.allow_differing - MAY_DIFFER):
            raise _refuse("allow_differing", item, " and ".join(sorted(MAY_DIFFER)))

    def _check_bisect(self) -> None:
        if self.bisect not in (None, *get_args(BisectUse)):
            raise _refuse("bisect", self.bisect, f"one of {', '.join(get_args(BisectUse))}")
        if self.bisect_over not in (None, *get_args(BisectOver)):
            raise _refuse(
                "bisect_over", self.bisect_over, f"one of {', '.join(get_args(BisectOver))}"
            )
        if self.bisect_jobs is not None and not _is_count(self.bisect_jobs, 1):
            raise _refuse("bisect_jobs", self.bisect_jobs, "a number of probes")
        if self.bisect_budget is not None and not 0.0 <= self.bisect_budget < math.inf:
            raise _refuse("bisect_budget", self.bisect_budget, "a number of evaluations")


def make_options(options: CompareOptions | None, **given: Any) -> CompareOptions:
    """Return options with fields overridden; a text stands for a sequence of one, or a path.

    Raises:
        UsageError: for a field that does not exist, with the nearest one, or a value of a kind
            that it cannot have.
    """
    names = [field.name for field in fields(CompareOptions)]
    for name in given:
        if name not in names:
            raise UsageError(f"compare() has no option '{name}'{nearest(name, names)}")
    for name in _SEQUENCES:
        if isinstance(given.get(name), (str, Path)):
            given[name] = (given[name],)
        if not isinstance(given.get(name, ()), Iterable):
            raise _refuse(name, given[name], "a text or a list of them")
    for name in ("tasks", "track"):
        if name in given:
            given[name] = tuple(given[name])
    for name in ("include_path", "output"):
        if name in given:
            given[name] = tuple(Path(path) for path in given[name])
    if "allow_differing" in given:
        given["allow_differing"] = frozenset(given["allow_differing"])
    for name in _PATHS:
        if given.get(name) == "":  # as a path it is the folder one is in
            raise _refuse(name, "", "a path")
        if given.get(name) is not None:
            given[name] = Path(given[name])
    return replace(options or CompareOptions(), **given)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, Real) and not isinstance(value, bool))


def _is_day(value: object) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _refuse(name: str, value: object, expected: str) -> UsageError:
    return UsageError(f"option {name}: {value!r} is not {expected}")


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
    default = CompareOptions()
    return {
        field.name: _plain_value(getattr(options, field.name), told_path)
        for field in fields(CompareOptions)
        if getattr(options, field.name) != getattr(default, field.name)
    }


def _plain_value(value: Any, told_path: Callable[[Path], str]) -> Any:
    if isinstance(value, Path):
        return told_path(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, told_path) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
