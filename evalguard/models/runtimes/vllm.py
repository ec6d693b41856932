"""vLLM in this process: any of its engine arguments, and exact distributions.

Workers of vLLM reduce the distributions of prompts themselves (``vllm_worker``), so that no logits
leave them. Before the first prompt its own log-probabilities are compared with what they give.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.models.annotations import read_annotation
from evalguard.models.failures import quote_error
from evalguard.models.position_reduction import Reduced, Wanted
from evalguard.models.runtimes.engine import (
    EngineRuntime,
    GeneratedByEngine,
    ReducedPrompt,
    WantedPrompt,
)
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenizer import FolderTokenizer, TokenizedRuntime
from evalguard.models.runtimes.vllm_worker import KEY
from evalguard.models.scored_tokens import InputTokens, ScoredTokens
from evalguard.models.served.repeated_answers import (
    LARGEST,
    Values,
    check_repeated_prompts,
    fit_length,
    make_prompts,
)

_WORKER = "evalguard.models.runtimes.vllm_worker.PromptReducer"
# Before vLLM is imported: its engine in this process, and nothing sent home.
_IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_VARIABLES = {_IN_PROCESS: "0", "VLLM_NO_USAGE_STATS": "1"}
_OWN_LENGTH = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
# What is not an argument of an engine in one process, and how it is done.
_ELSEWHERE = {
    "lora_local_path": (
        "an adapter is not put on the model here",
        "merge it (peft: merge_and_unload), or serve it: vllm serve --enable-lora --lora-modules "
        "NAME=PATH, model_args.model NAME",
    ),
    "data_parallel_size": (
        "one engine is in this process",
        "tensor_parallel_size; or serve it: vllm serve --data-parallel-size N; or compare finished "
        "runs of lm_eval --model vllm",
    ),
}
# Engine arguments that are evalguard's own to give, or that change what a prompt's numbers are.
_REFUSED = {
    "model": "name it in model_args.pretrained",
    "worker_extension_cls": "evalguard's own reduces the distributions",
    "worker_cls": "evalguard's extension is of vLLM's own workers",
    "logits_processors": "the model's own distributions are compared, before any processor",
    "logprobs_mode": "the model's own distributions are compared, before any processor",
    "skip_tokenizer_init": "texts are to be read",
    "runner": "distributions are those of a model that generates",
    "convert": "distributions are those of a model that generates",
    "enable_prompt_embeds": "prompts are token ids",
    "trust_remote_code": "write it beside model_args",
}


def load(arguments: RuntimeArguments) -> Runtime:
    """Start vLLM in this process.

    model_args: ``pretrained``, ``tokenizer`` (a folder), ``max_length`` (tokens that are read at
    once; by default all that the model has positions for), ``add_bos_token``,
    ``prefix_token_id``, and every engine argument of vLLM's by its Python name:
    ``kv_cache_dtype``, ``quantization``, ``tensor_parallel_size`` ...

    Raises:
        UsageError: an argument that vLLM does not know, or that evalguard gives.
        EvaluationError: vLLM does not start, lacks what evalguard needs, or gives other numbers
            than its workers compute.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    if os.environ[_IN_PROCESS] != "0":
        raise UsageError(
            f"{_IN_PROCESS} is {os.environ[_IN_PROCESS]}: vLLM would put its engine into another "
            "process, which takes no references",
            hint=f"unset {_IN_PROCESS}, or set it to 0",
        )
    folder = arguments.path()
    own = {
        "tokenizer": arguments.take("tokenizer"),
        "max_length": arguments.take_whole("max_length"),
        "add_bos_token": arguments.take_flag("add_bos_token"),
        "prefix_token_id": arguments.take_whole("prefix_token_id", least=0),
    }
    engine = _engine_arguments(arguments)
    length = own["max_length"]
    if length is None and engine.get("max_model_len") is None:
        length = _positions(folder, arguments.code_allowed)
    if length is not None and engine.get("max_model_len") is None:
        # vLLM wants room for a token that is written; it is never read.
        engine["max_model_len"] = length + 1
        os.environ.setdefault(_OWN_LENGTH, "1")
    tokenizer = folder if own["tokenizer"] is None else Path(str(own["tokenizer"])).expanduser()
    texts = FolderTokenizer(tokenizer, trust_remote_code=arguments.code_allowed)
    from vllm import LLM

    engine.setdefault("disable_log_stats", True)
    try:
        llm = LLM(
            model=str(folder),
            tokenizer=str(tokenizer),
            trust_remote_code=arguments.code_allowed,
            worker_extension_cls=_WORKER,
            **engine,
        )
    except Exception as error:
        if "memory" not in str(error).lower():
            raise
        raise EvaluationError(f"vLLM does not start: {error}", hint=_SHARE_HINT) from error
    try:
        runtime = VLLMRuntime(
            llm, texts, add_bos=own["add_bos_token"], prefix=own["prefix_token_id"], asked=engine
        )
        runtime.files = (folder, *texts.files)
        asked = arguments.device.partition(":")[0]
        if asked and asked != runtime.device:
            raise UsageError(
                f"device '{arguments.device}' was asked for, and this vLLM runs on "
                f"'{runtime.device}'",
                hint="its build decides; leave out --device, or name another environment (python:)",
            )
        runtime.probe()
    except BaseException:
        _shut_down(llm)
        raise
    return runtime


def _engine_arguments(arguments: RuntimeArguments) -> dict[str, Any]:
    """Those of vLLM's that were given.

    Raises:
        UsageError: one that is unknown, or not the user's to give.
    """
    for name in (*_REFUSED, *_ELSEWHERE):
        refuse_engine_argument(name, arguments.take(name))
    given = {name: arguments.take(name) for name in engine_annotations() if name != "tokenizer"}
    arguments.check_all_taken()
    return {name: value for name, value in given.items() if value is not None}


def refuse_engine_argument(name: str, value: Value) -> None:
    """Refuse an argument that vLLM has, and that nobody gives it here.

    Raises:
        UsageError: saying why, and what to do.
    """
    if value is not None and name in _REFUSED:
        raise UsageError(
            f"model_args.{name} cannot be given to model type 'vllm' here: {_REFUSED[name]}",
            hint=f"leave out {name}",
            target=f"model_args.{name}",
        )
    if value not in (None, 1) and name in _ELSEWHERE:
        reason, hint = _ELSEWHERE[name]
        raise UsageError(
            f"model type 'vllm' takes no {name} here: {reason}",
            hint=hint,
            target=f"model_args.{name}",
        )


def engine_annotations() -> dict[str, Any]:
    """Engine arguments of this environment's vLLM that a user may give, with their types."""
    from vllm.engine.arg_utils import EngineArgs

    names = vars(sys.modules[EngineArgs.__module__])
    return {
        field.name: read_annotation(field.type, names)
        for field in dataclasses.fields(EngineArgs)
        if field.name not in {*_REFUSED, *_ELSEWHERE}
    }


def _positions(folder: Path, code_allowed: bool) -> int | None:
    """How many tokens the model reads; None where vLLM has to say.

    Of a model whose rotary factors depend on the length that it is loaded for, one token more may
    be another model.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(folder), trust_remote_code=code_allowed)
    text = getattr(config, "text_config", None) or config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if "longrope" in str(rope):
        return None
    return next((int(getattr(text, n)) for n in _LENGTHS if getattr(text, n, None)), None)


class VLLMRuntime(TokenizedRuntime, EngineRuntime):
    """A model in vLLM's engine.

    Args:
        llm: vLLM's own object.
        asked: engine arguments that were given.
    """

    def __init__(
        self,
        llm: Any,
        tokenizer: FolderTokenizer,
        *,
        asked: Mapping[str, Any],
        add_bos: bool | None = None,
        prefix: int | None = None,
    ) -> None:
        super().__init__(tokenizer, add_bos=add_bos, prefix=prefix)
        self._llm: Any = llm
        self._asked = asked
        config = llm.llm_engine.vllm_config
        self._config = config
        self.max_length = int(config.model_config.max_model_len) - 1
        self.vocabulary_size = int(config.model_config.get_vocab_size())
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        self.device = str(getattr(config.device_config, "device_type", "cpu"))
        if int(config.parallel_config.world_size) == 1:
            self.parameters = int(self._call("evalguard_facts")[0]["parameters"])

    def probe(self) -> None:
        """Compare what the workers give with vLLM's own numbers, and prompts with each other.

        Raises:
            EvaluationError: they differ, or a prompt's numbers depend on those before or beside it.
        """
        most = min(self.vocabulary_size, 4096)
        ids = np.random.default_rng(0).permutation(np.arange(most)).tolist()
        prompts = make_prompts(ids, fit_length(self.max_length))
        if prompts is None:
            return
        (first,) = self._logprobs([prompts.first])
        self._compare_with_own(prompts.all)
        check_repeated_prompts(prompts, self._logprobs, batches=True, first=first)

    def _logprobs(self, prompts: Sequence[Sequence[int]]) -> list[Values]:
        pieces = [InputTokens(ids=tuple(ids), n_scored=len(ids) - 1) for ids in prompts]
        logprobs = {scored.fed: scored.logprobs for scored, _ in self.reduce(dict.fromkeys(pieces))}
        return [logprobs[piece] for piece in pieces]

    def _compare_with_own(self, prompts: Sequence[Sequence[int]]) -> None:
        """Of a shift by a place, of another prompt, of a vocabulary that is cut."""
        from vllm import SamplingParams

        ours = self._logprobs(prompts)
        wanted = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        answers = self._generate(prompts, [wanted] * len(prompts))
        for ids, own, answer in zip(prompts, ours, answers, strict=True):
            shown = answer.prompt_logprobs or []
            theirs = [
                of[token].logprob if of and token in of else np.nan
                for of, token in zip(shown[1:], ids[1:], strict=False)
            ]
            if len(theirs) != len(own) or np.isnan(theirs).any():
                raise EvaluationError(
                    f"vLLM shows log-probabilities of {len(theirs)} tokens of a prompt, and its "
                    f"workers compute them of {len(own)}",
                    hint=_HINT,
                )
            # Below 20 nats single precision and a clamp say little; what is probable has to agree.
            off = np.abs(np.maximum(theirs, -20.0) - np.maximum(own, -20.0))
            if float(off.mean()) > LARGEST:
                raise EvaluationError(
                    f"what vLLM's workers compute of a prompt of {len(ids)} tokens differs by "
                    f"{off.mean():.2g} nats a token from the log-probabilities that it shows",
                    hint=_HINT,
                )

    def reduce(self, wanted: Mapping[InputTokens, Wanted]) -> list[tuple[ScoredTokens, Reduced]]:
        """Read prompts, all at once, and reduce their distributions on the workers."""
        from vllm import SamplingParams

        prompts = {
            n: WantedPrompt(fed=fed, wanted=requested)
            for n, (fed, requested) in enumerate(wanted.items())
        }
        try:
            sampling = [
                SamplingParams(
                    max_tokens=1,
                    temperature=0.0,
                    logprobs=0,
                    detokenize=False,
                    skip_reading_prefix_cache=True,
                    extra_args={KEY: n},
                )
                for n in prompts
            ]
        except TypeError as error:
            raise EvaluationError(
                f"this version of vLLM lacks what evalguard needs: {error}", hint=_VERSION_HINT
            ) from error
        for lacking in self._call("evalguard_expect", prompts, self.vocabulary_size):
            if lacking:
                raise EvaluationError(
                    f"this version of vLLM lacks what evalguard needs: {lacking}",
                    hint=_VERSION_HINT,
                )
        answers = self._generate([prompt.ids for prompt in prompts.values()], sampling)
        replies = self._call("evalguard_take")
        _, reduced = next((reply for reply in replies if reply[0]), replies[0])
        return [_checked(reduced[n], answer) for n, answer in zip(prompts, answers, strict=True)]

    def generate(
        self, prompts: Sequence[Sequence[int]], options: Mapping[str, Any], most: int
    ) -> list[GeneratedByEngine]:
        """Continue prompts, greedily unless options say otherwise."""
        from vllm import SamplingParams

        given: Any = options.get("until") or []
        stops = [stop for stop in (given if isinstance(given, list) else [given]) if stop]
        draws = {}
        if options.get("do_sample", True):
            names = ("temperature", "top_p", "top_k", "seed")
            draws = {name: options[name] for name in names if options.get(name) is not None}
        sampling = SamplingParams(
            **{"temperature": 0.0, **draws}, max_tokens=most, stop=stops or None, logprobs=2
        )
        answers = self._generate(prompts, [sampling] * len(prompts))
        return [_read_text(answer.outputs[0]) for answer in answers]

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sequence[Any]) -> list[Any]:
        """vLLM's own answers, in the order asked.

        Raises:
            EvaluationError: it fails.
        """
        with self._told_failures("fails"):
            answers = self._open().generate(
                [{"prompt_token_ids": list(ids)} for ids in prompts],
                list(sampling),
                use_tqdm=False,
            )
        if len(answers) != len(prompts):
            raise EvaluationError(f"vLLM gave {len(answers)} answers to {len(prompts)} prompts")
        for ids, answer in zip(prompts, answers, strict=True):
            cached = getattr(answer, "num_cached_tokens", None)
            if cached is not None:
                self.cached_tokens = (self.cached_tokens or 0) + int(cached)
            if tuple(answer.prompt_token_ids) != tuple(ids):
                raise EvaluationError(
                    f"vLLM answers a prompt of {len(answer.prompt_token_ids)} tokens where one of "
                    f"{len(ids)} was asked for, or another one",
                    hint=_HINT,
                )
        return list(answers)

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        with self._told_failures(f"fails at {name}"):
            return list(self._open().collective_rpc(name, args=arguments))

    @contextlib.contextmanager
    def _told_failures(self, what: str) -> Iterator[None]:
        """Turn errors of vLLM's into evalguard's.

        Raises:
            EvaluationError: in place of any other.
        """
        try:
            yield
        except EvalguardError:
            raise
        except Exception as error:
            message, quotes = f"vLLM {what}: {type(error).__name__}", quote_error(error)
            if not self._lost_a_worker():
                raise EvaluationError(message, quotes=quotes) from error
            raise EvaluationError(
                f"a worker process of vLLM's ended before its answer ({message})",
                quotes=quotes,
                hint=_LOST_HINT,
            ) from error

    def _lost_a_worker(self) -> bool:
        """Whether a process of vLLM's executor has ended, which its error does not say."""
        executor = self._llm
        for part in ("llm_engine", "engine_core", "engine_core", "model_executor"):
            executor = getattr(executor, part, None)
        return bool(getattr(executor, "is_failed", False))

    def _open(self) -> Any:
        if self._llm is None:
            raise EvaluationError("this model was closed")
        return self._llm

    @property
    def effective(self) -> Mapping[str, Value]:
        """Arguments as vLLM's configuration has them."""
        return {
            name: actual
            for name, value in self._asked.items()
            if value != "auto" and (actual := self._read_back(name)) is not None
        }

    @property
    def computation(self) -> Mapping[str, Value]:
        """Prompts that are computed at a time, and whether one's are kept for the next."""
        most = getattr(self._config.scheduler_config, "max_num_seqs", None)
        return {
            "threads": None,  # vLLM's own variables say how many
            "concurrency": None if most is None else int(most),
            "prefix_cache": bool(self._config.cache_config.enable_prefix_caching),
        }

    def _read_back(self, name: str) -> Value:
        config = self._config
        for part in _CONFIGS:
            held = getattr(config, part, None)
            for own in (name, name.removeprefix("kv_")):
                if hasattr(held, own):
                    value = getattr(held, own)
                    value = getattr(value, "name", value)  # of an enumeration
                    text = str(value).removeprefix("torch.")
                    known = isinstance(value, (bool, int, float, str))
                    return value if known else text if own == "dtype" else None
        return None

    def close(self) -> None:
        """Stop the engine."""
        llm, self._llm = self._llm, None
        if llm is not None:
            _shut_down(llm)


_CONFIGS = ("model_config", "cache_config", "scheduler_config", "parallel_config")
_HINT = (
    "another version of vLLM may do: evalguard's extension is held to 0.32.0; or serve the model, "
    "where its own log-probabilities are read"
)
_SHARE_HINT = (
    "vLLM takes a share of the whole memory as it starts, whatever else is there: give it another "
    "one, say --cand-model-args gpu_memory_utilization=0.5 (--base-model-args of a base, "
    "model_args of a guard file), and --memory sequential, by which the base is gone by then"
)
_LOST_HINT = (
    "it was killed, or memory ran out (the kernel's log says so): a lower max_num_seqs or "
    "max_num_batched_tokens in model_args needs less; the same command again goes on from what is "
    "answered"
)
_VERSION_HINT = "evalguard's extension is held to vLLM 0.32.0: pip install vllm==0.32.0"


def _checked(prompt: ReducedPrompt, answer: Any) -> tuple[ScoredTokens, Reduced]:
    """What a prompt was reduced to, if it agrees with the token that vLLM itself chose after it.

    Raises:
        EvaluationError: it does not, or a position is missing.
    """
    if prompt.fault:
        raise EvaluationError(prompt.fault, hint=_HINT)
    assert prompt.scored is not None
    assert prompt.reduced is not None
    output = answer.outputs[0]
    (token,) = output.token_ids
    chosen = float(output.logprobs[0][token].logprob)
    if not abs(chosen - prompt.largest) <= LARGEST:
        raise EvaluationError(
            f"vLLM chooses a token of log-probability {chosen:.4g} after a prompt, and the most "
            f"probable one has {prompt.largest:.4g}: a logits processor changes it, or the numbers "
            "are those of another position",
            hint=_HINT,
        )
    return prompt.scored, prompt.reduced


def _read_text(output: Any) -> GeneratedByEngine:
    ids = tuple(int(token) for token in output.token_ids)
    margins, runners_up = [], []
    for token, shown in zip(ids, output.logprobs, strict=True):
        beside = {token_id: entry.logprob for token_id, entry in shown.items() if token_id != token}
        runner_up = max(beside, key=lambda token_id: beside[token_id], default=-1)
        runners_up.append(runner_up)
        margins.append(shown[token].logprob - beside[runner_up] if beside else float("nan"))
    return GeneratedByEngine(
        text=str(output.text),
        ids=ids,
        margins=tuple(margins),
        others=tuple(runners_up),
        ended="length" if output.finish_reason == "length" else "stop",
    )


def _shut_down(llm: Any) -> None:
    with contextlib.suppress(Exception):
        llm.llm_engine.engine_core.shutdown()
