"""RunOrigin: whose answers a finished run says it holds, and where two runs hold one model's.

lm-eval's response cache (``use_cache``) keys answers by the request alone: a second model that is
run with the same file gives the first one's answers back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from evalguard.core.documents.columns import Rows, pair_columns
from evalguard.core.settings import Value
from evalguard.harness.finished_runs.results_file import Results

# Arguments that say where and how fast a model is run, and not which.
_PLACEMENT = frozenset(
    {
        "autogptq_cache", "batch_size", "cache_dir", "device", "device_map", "device_map_option",
        "eos_string", "gpus", "max_batch_size", "max_cpu_memory", "max_gpu_memory",
        "max_memory_per_gpu", "max_retries", "num_concurrent", "offload_folder", "parallelize",
        "timeout", "token", "trust_remote_code", "use_auth_token", "verify_certificate",
    }
)  # fmt: skip
# Two similar models write some texts alike, and rounded log-likelihoods agree now and then; more
# than that does not come from two models whose answers went through one file.
_NEARLY_ALL_TEXTS, _MOST_LIKELIHOODS = 0.95, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """What a results file records of the model that answered.

    Attributes:
        name: of the model, for people.
        model: what tells it from others: type, name, revision, and arguments but for those that
            only place it.
        cache: lm-eval's ``use_cache``; "" where it was off.
        clock: moments of the run that no other run has; () where they are not recorded.
        file: where its results lie, links followed.
    """

    name: str
    model: Mapping[str, Value] = field(default_factory=dict)
    cache: str = ""
    clock: tuple[str, ...] = ()
    file: str = ""

    @classmethod
    def of(cls, results: Results) -> RunOrigin:
        """Read it from a results file."""
        config, content = results.config, results.content
        told: dict[str, Value] = {
            "model": config.get("model"),
            "model_name": content.get("model_name"),
            "model_sha": config.get("model_sha"),
            "model_revision": config.get("model_revision"),
            **{f"model_args: {name}": value for name, value in results.model_args.items()},
        }
        left_out = {f"model_args: {name}" for name in _PLACEMENT}
        times = (content.get("start_time"), content.get("total_evaluation_time_seconds"))
        return cls(
            name=results.model_name,
            model={
                name: str(value)
                for name, value in told.items()
                if value not in (None, "") and name not in left_out
            },
            cache=str(config.get("use_cache") or ""),
            clock=() if None in times else tuple(map(str, times)),
            file=str(results.path.resolve()),
        )

    def is_run_of(self, other: RunOrigin) -> bool:
        """Whether both are of one run: one file, or files of the same start and duration."""
        pairs = ((self.clock, other.clock), (self.file, other.file))
        return any(ours and ours == theirs for ours, theirs in pairs)


def share_one_model(base: RunOrigin, candidate: RunOrigin, ours: Rows, theirs: Rows) -> str:
    """Say why a task's answers in two runs are one model's, or both runs are one; "" if not.

    A model that was run twice is compared with itself.

    Args:
        ours, theirs: the documents' rows of base and candidate.
    """
    differing = [
        name
        for name in dict.fromkeys((*base.model, *candidate.model))
        if base.model.get(name) != candidate.model.get(name)
    ]
    copied = base.is_run_of(candidate)
    if not copied and not (differing and _is_one_file(base.cache, candidate.cache)):
        return ""
    same, n = _same_answers(ours, theirs)
    if not same:
        return ""
    alike = f"all {n:,} documents" if same == n else f"{same:,} of {n:,} documents"
    if not differing:
        return (
            f"both sides are one run of {base.name}, with the same answers to {alike}: nothing was "
            "compared; name the run of the candidate, or run it"
        )
    models = f"{base.name} and {candidate.name}"
    if base.name == candidate.name:
        models = f"{base.name} with other {', '.join(differing)}"
    if copied:
        return (
            f"both results files are of one run (same start and duration), name two models "
            f"({models}), and have the same answers to {alike}: one is a copy of the other; run "
            "the candidate once more"
        )
    return (
        f"both runs went through one lm-eval cache (use_cache {candidate.cache}), under two models "
        f"({models}), and have the same answers to {alike}: the cache does not tell models apart, "
        "so these are one model's answers; run the candidate once more without use_cache, or with "
        "a file of its own"
    )


def _is_one_file(one: str, other: str) -> bool:
    """Whether two caches may be one file: runs may name it from other folders or machines."""
    return bool(one and other) and PurePath(one).name == PurePath(other).name


def _same_answers(ours: Rows, theirs: Rows) -> tuple[int, int]:
    """In how many documents the answers are the same, of how many; (0, n) where few are."""
    texts = pair_columns(ours, theirs, "text")
    likelihoods = pair_columns(ours, theirs, "loglikelihood")
    n = len(texts[0])
    same = sum(
        one == other
        for one, other in zip(
            zip(texts[0], likelihoods[0], strict=True),
            zip(texts[1], likelihoods[1], strict=True),
            strict=True,
        )
    )
    enough = (
        same >= _NEARLY_ALL_TEXTS * n
        if any(map(_is_generated, texts[0]))
        else same > _MOST_LIKELIHOODS * n
    )
    return (same if enough else 0), n


def _is_generated(texts: Value) -> bool:
    """Whether there is any generated text among a document's answers."""
    return isinstance(texts, (list, tuple)) and any(text is not None for text in texts)
