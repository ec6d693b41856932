"""How a stored run was made and by whom: what makes its scores doubtful.

lm-eval's response cache (``use_cache``) keys answers by the request alone: a second model that is
run with the same file gives the first one's answers back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, cast

from evalguard.core.document_columns import Rows, column_of, pair_columns
from evalguard.core.findings import Finding
from evalguard.core.run_agreement import canonical_generation
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
        arguments: dict[str, Value] = {
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
                for name, value in arguments.items()
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
        first == second
        for first, second in zip(
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


_HALF = ("bfloat16", "float16", "half", "bf16", "fp16")
# What may differ between two runs without forbidding a comparison, and what that may do.
_EFFECTS = {
    "batch_size": "scores may differ by that alone",
    "max_length": "long documents may be cut at different places",
    "device": "scores may differ by that alone",
    "dtype": "",
    "softmax_dtype": "log-probabilities were rounded differently",
    "chat_template_sha": "",
    "system_instruction_sha": "",
    "lm_eval_version": "its tasks and scoring change between versions",
    "transformers_version": "",
    "tokenizer": "",
    "tokenizer_bos_token": "",
    "tokenizer_eos_token": "texts end at other tokens",
    "max_gen_toks": "texts are cut at other lengths where the task names none",
}
# One engine under several of lm-eval's names.
_ENGINES = {"hf-auto": "hf", "huggingface": "hf"}
# What an engine samples with where a task names neither, as lm-eval 0.4.13 calls it: whether the
# model's generation_config.json acts, and top_k.
_SAMPLING = {
    "hf": "hf takes what generation_config.json says, else top_k 50",
    "vllm": "vllm takes neither generation_config.json nor a top_k",
}
_BY_THE_SERVER = "{} leaves them to its server, which may take generation_config.json's"
# Clients of lm-eval whose prompts no tokenizer of its own cuts.
_UNCUT = ("chat", "gguf", "ggml")
# Engines that leave BOS out where a prompt says it, since this version.
_BOS_ONCE = ("hf", "vllm")
_BOS_ONCE_SINCE = (0, 4, 12)
_DEFAULT_GENERATES = 256
_MOST_BYTES_PER_TOKEN = 6  # of texts; those of code with long indents and of digits have other ones
_VERSIONS = ("lm_eval_version", "transformers_version")


def _plain(value: Value) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")


def run_environment_of(results: Results) -> dict[str, Value]:
    """Return what is known about how a run was made, for reports."""
    config, content, arguments = results.config, results.content, results.model_args
    environment: dict[str, Value] = {
        "model": engine_of(config.get("model")),
        "dtype": config.get("model_dtype") or arguments.get("dtype"),
        "softmax_dtype": arguments.get("softmax_dtype"),
        "batch_size": config.get("batch_size"),
        "max_length": content.get("max_length") or arguments.get("max_length"),
        "device": config.get("device"),
        "tokenizer": arguments.get("tokenizer"),
        "tokenizer_bos_token": _token(content.get("tokenizer_bos_token")),
        "tokenizer_eos_token": _token(content.get("tokenizer_eos_token")),
        "max_gen_toks": _default_length(results),
        "use_cache": config.get("use_cache"),
        "limit": config.get("limit"),
        "chat_template_sha": content.get("chat_template_sha"),
        "system_instruction_sha": content.get("system_instruction_sha"),
        "lm_eval_version": content.get("lm_eval_version"),
        "transformers_version": content.get("transformers_version"),
    }
    return {name: value for name, value in environment.items() if value is not None}


def run_reading(results: Results) -> dict[str, Value]:
    """Return what the token ids of a run follow from, which lm-eval does not store.

    lm-eval records its version since 0.4.9 or so; before 0.4.12 it added no BOS by itself.
    """
    content, arguments = results.content, results.model_args
    version = content.get("lm_eval_version")
    known = isinstance(version, str) and re.match(r"\d", version)
    reading: dict[str, Value] = {
        "lm_eval": version if known else None,
        "add_bos_token": arguments.get("add_bos_token"),
        "prefix_token_id": arguments.get("prefix_token_id"),
        "prefix_token": _prefix_token(results),
        "max_length": content.get("max_length") or arguments.get("max_length"),
        "chat_template": content.get("chat_template_sha"),
        "system_instruction": content.get("system_instruction_sha"),
        "rolling_bos": "lm-eval",
        "finished": True,
    }
    return {name: value for name, value in reading.items() if value is not None}


def _prefix_token(results: Results) -> Value:
    """The token that lm-eval puts before a text: BOS, or EOS where there is none."""
    names = ("tokenizer_bos_token", "tokenizer_eos_token")
    return next(filter(None, (_token(results.content.get(name)) for name in names)), None)


def _default_length(results: Results) -> Value:
    """Tokens that a text may have where its task names no number; None where each one does."""
    configs = results.content.get("configs") or {}
    written = [task for task in configs if results.output_type(task) == "generate_until"]
    named = (canonical_generation(results.generation(task)) for task in written)
    if all("max_gen_toks" in options for options in named):
        return None
    return cast("Value", results.model_args.get("max_gen_toks") or _DEFAULT_GENERATES)


def _token(written: Any) -> str | None:
    """A token of a results file, [text, id as text]; None where there is none."""
    if not isinstance(written, list) or len(written) != 2 or str(written[1]) == "None":
        return None
    return f"{written[0]} ({written[1]})"


def engine_of(model: Any) -> Value:
    """lm-eval's name of what ran a model, the first where it has several."""
    return None if model is None else _ENGINES.get(str(model), str(model))


def find_cut_prompts(results: Results, documents: Mapping[str, Rows]) -> Iterator[Finding]:
    """Say how many prompts a run's model read without their beginning, or with BOS twice.

    lm-eval logs no token counts. A text has at least as many tokens as words, and one for six
    bytes: what is longer even so was cut.

    Args:
        documents: of each task.
    """
    cut = total = twice = 0
    bos_token: Any = results.content.get("tokenizer_bos_token")
    bos = "" if _token(bos_token) is None or not _writes_bos_always(results) else str(bos_token[0])
    for task, rows in documents.items():
        longest = _longest_prompt(results, task)
        for prompt in column_of(rows, "prompt"):
            text = prompt if isinstance(prompt, str) else ""
            total += 1
            cut += longest is not None and len(text) > longest < _fewest_tokens(text)
            twice += bool(bos) and text.startswith(bos)
    if cut:
        yield Finding(
            kind="prompts_cut",
            text=f"{results.model_name} read at least {cut:,} of {total:,} prompts without their "
            f"beginning: they are longer than max_length leaves room for",
            values={"side": results.model_name, "cut": cut, "documents": total},
        )
    if twice:
        yield Finding(
            kind="bos_twice",
            text=f"{results.model_name} read {bos} twice in {twice:,} of {total:,} prompts: they "
            "say it (a chat template does), and add_bos_token writes it once more",
            values={"side": results.model_name, "doubled": twice, "documents": total},
        )


def _fewest_tokens(text: str) -> int:
    size = len(text.encode("utf-8", "surrogatepass"))
    return max(len(text.split()), size // _MOST_BYTES_PER_TOKEN)


def _longest_prompt(results: Results, task: str) -> int | None:
    """Tokens of a prompt that a run's model reads; None where it reads all, or nobody knows."""
    length = results.content.get("max_length") or results.model_args.get("max_length")
    engine, kind = str(results.config.get("model") or ""), results.output_type(task)
    if any(name in engine for name in _UNCUT) or kind == "loglikelihood_rolling":
        return None
    try:
        tokens = int(str(length))
        if kind != "generate_until":
            return tokens
        options = canonical_generation(results.generation(task))
        given = options.get("max_gen_toks", results.model_args.get("max_gen_toks"))
        return tokens - int(float(str(given or _DEFAULT_GENERATES)))
    except ValueError:
        return None


def _writes_bos_always(results: Results) -> bool:
    """Whether a run's client writes BOS before a prompt that says it already."""
    if str(results.model_args.get("add_bos_token", False)).lower() != "true":
        return False
    if engine_of(results.config.get("model")) not in _BOS_ONCE:
        return "chat" not in str(results.config.get("model"))
    version = re.findall(r"\d+", str(results.content.get("lm_eval_version") or ""))[:3]
    return bool(version) and tuple(map(int, version)) < _BOS_ONCE_SINCE


def find_other_engines(
    base: Mapping[str, Value], candidate: Mapping[str, Value], *, generated: bool
) -> Iterator[Finding]:
    """Say that two sides were run by different engines, and what these sample with by themselves.

    Args:
        base, candidate: as of ``environment_differences``.
        generated: whether any text was.
    """
    ours, theirs = (str(side.get("model") or "") for side in (base, candidate))
    if not ours or not theirs or ours == theirs:
        return
    text = f"the base was run by {ours}, the other by {theirs}: other kernels"
    if generated:
        samplings = [
            _SAMPLING.get(engine, _BY_THE_SERVER.format(engine)) for engine in (ours, theirs)
        ]
        text += f" and other sampling where the task names none ({'; '.join(samplings)})"
    yield Finding(
        kind="made_differently",
        text=text,
        values={"option": "model", "base": ours, "candidate": theirs},
    )


def caveats_of(environment: Mapping[str, Value], *, generated: bool) -> tuple[str, ...]:
    """Say what in a run's making puts its scores in doubt, whatever it is compared with.

    Args:
        generated: whether they are scores of generated answers, which no log-probability enters.
    """
    caveats = []
    if environment.get("use_cache"):
        caveats.append(
            "lm-eval's response cache (use_cache) was on: it does not tell models apart, so these "
            "may be another model's scores"
        )
    dtype = str(environment.get("dtype") or "")
    exact = str(environment.get("softmax_dtype") or "").endswith("float32")
    if any(name in dtype for name in _HALF) and not exact and not generated:
        caveats.append(
            f"log-probabilities were rounded to {dtype.removeprefix('torch.')} (softmax_dtype is "
            "not float32): noise of about 0.1 nats per document"
        )
    if str(environment.get("batch_size") or "").startswith("auto"):
        caveats.append("batch_size was auto: another run may have had other batches")
    return tuple(caveats)


def environment_differences(
    base: Mapping[str, Value], candidate: Mapping[str, Value]
) -> tuple[str, ...]:
    """Say where two runs were made differently in ways that pairing cannot see.

    Args:
        base, candidate: ``StoredRun.environment`` of each side, or the same of a model.
    """
    differences = []
    for name, effect in _EFFECTS.items():
        ours, theirs = (_plain(side.get(name)) for side in (base, candidate))
        unknown = None in (ours, theirs) and (name not in _VERSIONS or ours is theirs)
        if unknown or ours == theirs:
            continue
        ours, theirs = ours or "not recorded", theirs or "not recorded"
        tail = f": {effect}" if effect else ""
        differences.append(f"{name} is {ours} in the base run and {theirs} in the other{tail}")
    return tuple(differences)
