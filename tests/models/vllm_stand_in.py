"""A stand-in of vLLM's Python interface: its names and steps, over a Hugging Face model.

Requests are scheduled in parts of at most ``max_num_batched_tokens`` tokens, several beside each
other; a step's hidden states go to the model runner's own method, as in vLLM 0.32.0
(``GPUModelRunner._get_prompt_logprobs_dict``; of its second runner
``PromptLogprobsWorker.compute_prompt_logprobs``). ``Faults`` are what it does wrong.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

BLOCK = 16


@dataclass
class EngineArgs:
    """The arguments of vLLM's that tests give."""

    model: str = ""
    tokenizer: str | None = None
    trust_remote_code: bool = False
    worker_extension_cls: str = ""
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_batched_tokens: int = 4096
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    logits_processors: Any = None
    disable_log_stats: bool = False
    tokens_ahead: int | None = None
    kind: Literal["quick", "slow"] = "slow"


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_reading_prefix_cache: bool | None = None
    extra_args: dict[str, Any] | None = None


@dataclass(kw_only=True)
class OldSamplingParams:
    """Of a version that could not be told to leave its prefix cache alone."""

    max_tokens: int = 16
    temperature: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    extra_args: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What the engine does wrong.

    Attributes:
        shift: places by which hidden states are off; ``inner``: of all positions but the last.
        cut: tokens that logits lack; ``padding``: columns beyond the vocabulary, of large logits.
        lost: the first token of a prompt is not read; ``exchanged``: two prompts change places.
        cached: every prompt takes its first block from the cache, whatever it is told.
        preempted: every prompt is put aside after its first part, and begun again.
        sampled: the token after a prompt is another one than the model's.
        beside: prompts that are read beside others have other numbers.
        dies: the step at which the engine fails, counted from 0.
        no_method, old: the runner has no method for log-probabilities; no parameter for the cache.
    """

    shift: int = 0
    inner: int = 0
    cut: int = 0
    padding: int = 0
    lost: bool = False
    exchanged: bool = False
    cached: bool = False
    preempted: bool = False
    sampled: bool = False
    beside: bool = False
    dies: int | None = None
    no_method: bool = False
    old: bool = False


class _Model:
    """Hidden states of any prompt, and the logits that a worker of ``workers`` is given."""

    def __init__(self, folder: str, faults: Faults, worker: int, workers: int) -> None:
        self._own: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        self._faults, self._worker, self._workers = faults, worker, workers
        self.calls: list[int] = []
        self._known: dict[Any, torch.Tensor] = {}

    def parameters(self) -> Any:
        return self._own.parameters()

    def hidden_states(self, ids: Sequence[int]) -> torch.Tensor:
        key = (tuple(ids), self._faults)
        if key in self._known:  # every part of a prompt asks
            return self._known[key]
        with torch.no_grad():
            found: torch.Tensor = self._own.model(torch.tensor([list(ids)])).last_hidden_state[0]
        found[:-1] = found[:-1].roll(self._faults.inner, 0)
        self._known[key] = found.roll(self._faults.shift, 0)
        return self._known[key]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        self.calls.append(len(hidden_states))
        if self._worker != self._workers - 1:
            return None  # one worker is given all
        return self.all_logits(hidden_states)

    def all_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = self._own.lm_head(hidden_states)
        cap = getattr(self._own.config, "final_logit_softcapping", None)
        if cap:
            found = (found / cap).tanh() * cap
        found = found[:, : found.shape[1] - self._faults.cut]
        padding = torch.full((len(found), self._faults.padding), 40.0)
        return torch.cat([found, padding], dim=1)


class _FirstRunner:
    def __init__(self, model: _Model) -> None:
        self.model = model
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_id_to_index={})
        self.query_start_loc = SimpleNamespace(np=np.zeros(1, dtype=np.int64))

    def _get_prompt_logprobs_dict(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, Any]:
        return {}

    def add(self, name: str, request: Any) -> None:
        self.requests[name] = request

    def step(self, hidden: torch.Tensor, scheduled: dict[str, int], offsets: list[int]) -> None:
        self.input_batch.req_id_to_index = {name: n for n, name in enumerate(scheduled)}
        self.query_start_loc.np = np.array(offsets)
        self._get_prompt_logprobs_dict(hidden, scheduled)


class _BareRunner(_FirstRunner):
    _get_prompt_logprobs_dict = property()  # type: ignore[assignment]  # hasattr says no


class _PromptLogprobsWorker:
    def __init__(self) -> None:
        self.known: list[str] = []

    def add_request(self, req_id: str, req_idx: int, sampling_params: Any) -> None:
        self.known.append(req_id)

    def compute_prompt_logprobs(
        self,
        logits_fn: Any,
        hidden_states: Any,
        input_batch: Any,
        all_token_ids: Any,
        num_computed_tokens: Any,
        prompt_lens: Any,
    ) -> dict[str, Any]:
        assert set(input_batch.req_ids) <= set(self.known)
        return {}


class _SecondRunner:
    def __init__(self, model: _Model) -> None:
        self.model = model
        self.prompt_logprobs_worker = _PromptLogprobsWorker()
        self._requests: dict[str, Any] = {}

    def add(self, name: str, request: Any) -> None:
        self._requests[name] = request
        self.prompt_logprobs_worker.add_request(name, len(self._requests), request.sampling_params)

    def step(self, hidden: torch.Tensor, scheduled: dict[str, int], offsets: list[int]) -> None:
        requests = [self._requests[name] for name in scheduled]
        lengths = np.array([len(one.prompt_token_ids) for one in requests])
        ids = torch.zeros((len(requests), int(lengths.max())), dtype=torch.int32)
        for row, one in zip(ids, requests, strict=True):
            row[: len(one.prompt_token_ids)] = torch.tensor(one.prompt_token_ids)
        computed = np.array([one.num_computed_tokens for one in requests])
        batch = SimpleNamespace(
            req_ids=list(scheduled),
            idx_mapping_np=np.arange(len(requests)),
            num_computed_prefill_tokens_np=computed,
            num_scheduled_tokens=np.array(list(scheduled.values())),
            query_start_loc_np=np.array(offsets),
        )
        self.prompt_logprobs_worker.compute_prompt_logprobs(
            self.model.compute_logits, hidden, batch, ids, torch.tensor(computed), lengths
        )


class _Logprob(SimpleNamespace):
    logprob: float


class LLM:
    """vLLM's own object, as far as evalguard asks it."""

    faults = Faults()
    second_runner = False
    made: list[LLM] = []  # noqa: RUF012

    def __init__(self, *, model: str, **arguments: Any) -> None:
        self.arguments = EngineArgs(model=model, **arguments)
        self.seen: list[Any] = []
        self.steps = 0
        self._names = itertools.count()
        faults, count = self.faults, self.arguments.tensor_parallel_size
        kind = _SecondRunner if self.second_runner else _FirstRunner
        kind = _BareRunner if faults.no_method else kind
        module, _, name = self.arguments.worker_extension_cls.rpartition(".")
        extension = getattr(sys.modules[module], name)
        self.workers = []
        for n in range(count):
            worker = type("Worker", (extension,), {})()
            worker.model_runner = kind(_Model(model, faults, n, count))
            self.workers.append(worker)
        config = self.workers[0].model_runner.model._own.config
        self.llm_engine = SimpleNamespace(
            vllm_config=SimpleNamespace(
                model_config=SimpleNamespace(
                    max_model_len=self.arguments.max_model_len,
                    get_vocab_size=lambda: config.vocab_size,
                    dtype=torch.float32,
                ),
                cache_config=SimpleNamespace(
                    enable_prefix_caching=self.arguments.enable_prefix_caching,
                    cache_dtype=self.arguments.kv_cache_dtype,
                ),
                scheduler_config=SimpleNamespace(
                    max_num_batched_tokens=self.arguments.max_num_batched_tokens
                ),
                parallel_config=SimpleNamespace(world_size=count, tensor_parallel_size=count),
                device_config=SimpleNamespace(device_type="cpu"),
            ),
            engine_core=SimpleNamespace(shutdown=lambda: None),
        )
        LLM.made.append(self)

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return [getattr(worker, method)(*args) for worker in self.workers]

    def generate(self, prompts: Any, params: Any, *, use_tqdm: bool = True) -> list[Any]:
        assert not use_tqdm
        self.seen += params
        told = [list(one["prompt_token_ids"]) for one in prompts]
        read = [ids[1:] if self.faults.lost else ids for ids in told]
        if self.faults.exchanged and len(read) > 1:
            read = [read[1], read[0], *read[2:]]
        requests = [
            SimpleNamespace(
                name=f"{next(self._names)}-{n}",
                prompt_token_ids=ids,
                sampling_params=one,
                num_computed_tokens=BLOCK if self._reads_cache(one) else 0,
                again=self.faults.preempted,
            )
            for n, (ids, one) in enumerate(zip(read, params, strict=True))
        ]
        for request in requests:
            for worker in self.workers:
                worker.model_runner.add(request.name, request)
        while waiting := [one for one in requests if _remaining(one)]:
            self._step(waiting, alone=len(requests) == 1)
        return [self._answer(ids, one) for ids, one in zip(told, params, strict=True)]

    def _reads_cache(self, params: Any) -> bool:
        skips = getattr(params, "skip_reading_prefix_cache", None)
        if skips is None:
            skips = params.prompt_logprobs is not None
        return self.faults.cached or (self.arguments.enable_prefix_caching and not skips)

    def _step(self, waiting: Sequence[Any], *, alone: bool) -> None:
        if self.steps == self.faults.dies:
            raise RuntimeError("EngineDeadError: a worker is gone")
        self.steps += 1
        room, scheduled = self.arguments.max_num_batched_tokens, {}
        for request in waiting:
            count = min(room, _remaining(request))
            if count:
                scheduled[request.name] = count
                room -= count
        chosen = [one for one in waiting if one.name in scheduled]
        offsets = np.cumsum([0, *scheduled.values()]).tolist()
        for worker in self.workers:
            runner = worker.model_runner
            parts = []
            for one in chosen:
                start = one.num_computed_tokens
                hidden = runner.model.hidden_states(one.prompt_token_ids)
                hidden = hidden if alone or not self.faults.beside else hidden.flip(1)
                parts.append(hidden[start : start + scheduled[one.name]])
            runner.step(torch.cat(parts), scheduled, offsets)
        for one in chosen:
            one.num_computed_tokens += scheduled[one.name]
            if one.again:
                one.again, one.num_computed_tokens = False, 0

    def _answer(self, ids: list[int], params: Any) -> Any:
        """vLLM's own numbers, which no fault of the workers changes."""
        model = self.workers[-1].model_runner.model
        sound = _Model.__new__(_Model)
        clean = replace(model._faults, shift=0, inner=0, cut=0, padding=0)
        sound.__dict__ = {**model.__dict__, "_faults": clean, "_known": {}}
        written: list[int] = []
        shown: list[dict[int, Any]] = []
        finish = "length"
        while len(written) < params.max_tokens:
            row = sound.all_logits(sound.hidden_states([*ids, *written])[-1:])[0].log_softmax(-1)
            order = row.argsort(descending=True)
            token = int(order[-1] if self.faults.sampled else order[0])
            written.append(token)
            beside = order[: params.logprobs or 0].tolist()
            shown.append({n: _Logprob(logprob=float(row[n])) for n in (*beside, token)})
            if token == 1:
                finish = "stop"
                break
        prompt = None
        if params.prompt_logprobs is not None:
            rows = sound.all_logits(sound.hidden_states(ids)).log_softmax(-1)
            prompt = [None, *({token: _Logprob(logprob=float(row[token]))}
                              for token, row in zip(ids[1:], rows, strict=False))]  # fmt: skip
        output = SimpleNamespace(
            text="".join(f"<{n}>" for n in written), token_ids=written, logprobs=shown,
            finish_reason=finish,
        )  # fmt: skip
        return SimpleNamespace(
            prompt_token_ids=ids, prompt_logprobs=prompt, outputs=[output],
            num_cached_tokens=BLOCK if self._reads_cache(params) else 0,
        )  # fmt: skip


def _remaining(request: Any) -> int:
    return max(0, len(request.prompt_token_ids) - request.num_computed_tokens)


def install(
    monkeypatch: pytest.MonkeyPatch, faults: Faults | None = None, *, second_runner: bool = False
) -> type[LLM]:
    """Put the stand-in in vLLM's place for one test; the class that is made engines of."""
    kind = type("LLM", (LLM,), {"faults": faults or Faults(), "second_runner": second_runner})
    old = faults is not None and faults.old
    modules: Mapping[str, Mapping[str, Any]] = {
        "vllm": {"LLM": kind, "SamplingParams": OldSamplingParams if old else SamplingParams},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
    }
    for name, contents in modules.items():
        module: Any = ModuleType(name)
        module.__spec__ = SimpleNamespace(name=name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("VLLM_NO_USAGE_STATS", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"):
        monkeypatch.setenv(name, "1")  # which loading sets, and no other test is to see
    LLM.made.clear()
    return kind
