"""What evalguard adds to vLLM's workers: distributions of prompts, reduced where they are computed.

vLLM mixes the class into its worker (``worker_extension_cls``) and calls its methods by name
(``collective_rpc``). Each worker's model runner has one method that is handed the hidden states of
a step for the log-probabilities of prompts (``_get_prompt_logprobs_dict``; of its second runner
``compute_prompt_logprobs``). It is wrapped: prompts of evalguard's are reduced there, whatever
others want is left to vLLM's own method. Held to vLLM 0.32.0: ``GPUModelRunner``, of which that
for CPUs is one, and ``PromptLogprobsWorker``.

- *Chunked prefill*: a prompt comes in parts, each with the place where it begins.
- *Prefix caching*: no hidden states of what comes from the cache: such a prompt is a fault. Prompts
  are sent so that they do not read it.
- *Tensor parallel*: every worker computes the logits of its part of the vocabulary, and one of them
  is given them all; so all take the same steps, and one of them reduces.
- *Padding*: the embedding's rows beyond the vocabulary are cut off before log-softmax.
- *Sampling*: temperature and logits processors act on tokens that are drawn, behind this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from evalguard.models.runtimes.engine import PromptPositions, ReducedPrompt, WantedPrompt

KEY = "evalguard"
"""In ``extra_args`` of a request's sampling parameters: the number of its prompt."""
# Bytes of float32 logits at a time; beside them are as many of log-probabilities.
ROOM = 64 * 2**20


class PromptReducer:
    """Methods of a vLLM worker; no name of them is a name of vLLM's."""

    model_runner: Any

    def evalguard_expect(self, prompts: Mapping[int, WantedPrompt], vocabulary_size: int) -> str:
        """Note what is to be reduced, by the numbers that requests carry.

        Returns:
            "", or what this version of vLLM lacks.
        """
        if getattr(self, "_evalguard_prompts", None) is None:
            lacking = hook_runner(self.model_runner, self._evalguard_reduce)
            if lacking:
                return lacking
        self._evalguard_prompts: dict[int, PromptPositions] = {
            number: PromptPositions(prompt=prompt, vocabulary_size=vocabulary_size)
            for number, prompt in prompts.items()
        }
        self._evalguard_logits = False
        return ""

    def evalguard_take(self) -> tuple[bool, dict[int, ReducedPrompt]]:
        """Return whether this worker was given logits, and what is left of all prompts."""
        prompts, self._evalguard_prompts = self._evalguard_prompts, {}
        return self._evalguard_logits, {n: prompt.finish() for n, prompt in prompts.items()}

    def evalguard_facts(self) -> dict[str, Any]:
        """Number of weights of this worker's part of the model."""
        model = self.model_runner.model
        return {"parameters": sum(weights.numel() for weights in model.parameters())}

    def _evalguard_reduce(
        self,
        number: Any,
        read_ids: Callable[[], list[int]],
        start: int,
        hidden_states: Any,
        compute_logits: Callable[[Any], Any],
    ) -> None:
        """Reduce the positions of a prompt from ``start`` on, a few at a time."""
        positions = self._evalguard_prompts.get(number)
        if positions is None:
            return
        positions.begin(read_ids())
        wanted = positions.take(start, hidden_states.shape[0])
        size = positions.vocabulary_size
        step = max(1, ROOM // (4 * size))
        for first in range(wanted.start, wanted.stop, step):
            rows = compute_logits(hidden_states[first : min(first + step, wanted.stop)])
            if rows is None:  # of tensor-parallel workers, one is given all
                continue
            self._evalguard_logits = True
            positions.add(rows[:, :size].float().log_softmax(-1))


Reduce = Callable[[Any, Callable[[], list[int]], int, Any, Callable[[Any], Any]], None]


def hook_runner(runner: Any, reduce: Reduce) -> str:
    """Wrap the method of a model runner that is handed a step's hidden states.

    Returns:
        "", or what is not there.
    """
    own = getattr(runner, "prompt_logprobs_worker", None)
    if own is not None and hasattr(own, "compute_prompt_logprobs"):
        _hook_second_runner(own, reduce)
        return ""
    if hasattr(runner, "_get_prompt_logprobs_dict"):
        _hook_first_runner(runner, reduce)
        return ""
    return f"{type(runner).__name__} has no _get_prompt_logprobs_dict and no prompt_logprobs_worker"


def _hook_first_runner(runner: Any, reduce: Reduce) -> None:
    own = runner._get_prompt_logprobs_dict

    def reduced(hidden_states: Any, num_scheduled_tokens: Mapping[str, int]) -> Any:
        for name, count in num_scheduled_tokens.items():
            request = runner.requests[name]
            number = _number(request.sampling_params)
            ids = request.prompt_token_ids
            if number is None or ids is None:
                continue
            start = int(request.num_computed_tokens)
            index = runner.input_batch.req_id_to_index[name]
            offset = int(runner.query_start_loc.np[index])
            end = offset + min(count, max(0, len(ids) - start))
            reduce(number, ids.copy, start, hidden_states[offset:end], runner.model.compute_logits)
        return own(hidden_states, num_scheduled_tokens)

    runner._get_prompt_logprobs_dict = reduced


def _hook_second_runner(own: Any, reduce: Reduce) -> None:
    compute, add = own.compute_prompt_logprobs, own.add_request
    numbers: dict[str, Any] = {}

    def add_request(name: str, place: int, sampling_params: Any, *more: Any) -> Any:
        numbers[name] = _number(sampling_params)
        return add(name, place, sampling_params, *more)

    def reduced(
        compute_logits: Any,
        hidden_states: Any,
        batch: Any,
        all_token_ids: Any,
        num_computed_tokens: Any,
        prompt_lens: Any,
    ) -> Any:
        for n, name in enumerate(batch.req_ids):
            number = numbers.get(name)
            if number is None:
                continue
            index = int(batch.idx_mapping_np[n])
            length = int(prompt_lens[index])
            start = int(batch.num_computed_prefill_tokens_np[n])
            offset = int(batch.query_start_loc_np[n])
            end = offset + min(int(batch.num_scheduled_tokens[n]), max(0, length - start))
            reduce(
                number,
                partial(_read_ids, all_token_ids, index, length),
                start,
                hidden_states[offset:end],
                compute_logits,
            )
            if start + end - offset >= length:
                del numbers[name]
        return compute(
            compute_logits, hidden_states, batch, all_token_ids, num_computed_tokens, prompt_lens
        )

    own.add_request, own.compute_prompt_logprobs = add_request, reduced


def _read_ids(all_token_ids: Any, place: int, length: int) -> list[int]:
    return list(all_token_ids[place, :length].tolist())


def _number(sampling_params: Any) -> Any:
    extra = getattr(sampling_params, "extra_args", None)
    return extra.get(KEY) if isinstance(extra, Mapping) else None
