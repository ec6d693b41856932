"""How a stored run was made: what makes its scores doubtful, and where two runs differ."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evalguard.core.settings import Value
from evalguard.harness.finished_runs.results_file import Results

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
}


_VERSIONS = ("lm_eval_version", "transformers_version")


def _plain(value: Value) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")


def run_environment_of(results: Results) -> dict[str, Value]:
    """Return what is known about how a run was made, for reports."""
    config, content, arguments = results.config, results.content, results.model_args
    found: dict[str, Value] = {
        "model": config.get("model"),
        "dtype": config.get("model_dtype") or arguments.get("dtype"),
        "softmax_dtype": arguments.get("softmax_dtype"),
        "batch_size": config.get("batch_size"),
        "max_length": content.get("max_length") or arguments.get("max_length"),
        "device": config.get("device"),
        "use_cache": config.get("use_cache"),
        "limit": config.get("limit"),
        "chat_template_sha": content.get("chat_template_sha"),
        "system_instruction_sha": content.get("system_instruction_sha"),
        "lm_eval_version": content.get("lm_eval_version"),
        "transformers_version": content.get("transformers_version"),
    }
    return {name: value for name, value in found.items() if value is not None}


def run_reading(results: Results) -> dict[str, Value]:
    """Return what the token ids of a run follow from, which lm-eval does not store.

    lm-eval records its version since 0.4.9 or so; before 0.4.12 it added no BOS by itself.
    """
    content, arguments = results.content, results.model_args
    version = content.get("lm_eval_version")
    known = isinstance(version, str) and re.match(r"\d", version)
    found: dict[str, Value] = {
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
    return {name: value for name, value in found.items() if value is not None}


def _prefix_token(results: Results) -> Value:
    """The token that lm-eval puts before a text: BOS, or EOS where there is none."""
    for name in ("tokenizer_bos_token", "tokenizer_eos_token"):
        token = results.content.get(name)  # [text, id as text]
        if isinstance(token, list) and len(token) == 2 and str(token[1]) != "None":
            return f"{token[0]} ({token[1]})"
    return None


def caveats_of(environment: Mapping[str, Value]) -> tuple[str, ...]:
    """Say what in a run's making puts its scores in doubt, whatever it is compared with."""
    caveats = []
    if environment.get("use_cache"):
        caveats.append(
            "lm-eval's response cache (use_cache) was on: it does not tell models apart, so these "
            "may be another model's scores"
        )
    dtype = str(environment.get("dtype") or "")
    exact = str(environment.get("softmax_dtype") or "").endswith("float32")
    if any(name in dtype for name in _HALF) and not exact:
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
