"""How many tokens at a time a device reads fastest, measured with the loaded model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evalguard.models.failures import BatchTooLargeError
from evalguard.models.hf.batches import PackedBatch, pad_batch
from evalguard.models.identity import device_name, model_dtype
from evalguard.models.machine import measure_free_memory
from evalguard.models.scored_tokens import InputTokens

if TYPE_CHECKING:
    from evalguard.core.settings import Value

_LENGTH, _SCORED = 128, 2
# Different tokens that are read: text has few, and each of a file that is mapped into memory stays.
_TOKENS = 1024
_SEED = 0
_SHARE_OF_ROOM = 0.6
# A batch is read so often, and for so long, that something else on the machine does not decide.
_TIMES, _SECONDS = 3, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSearch:
    """How a budget is looked for: from ``first`` tokens on, doubling, up to ``last``.

    Attributes:
        seconds: after which no larger budget is tried.
        clearly: share by which a larger budget has to be faster to be worth its padding.
    """

    first: int
    last: int
    seconds: float = 2.0
    clearly: float = 0.05


# Of CPUs, which are not measured: 512 to 4,096 read about as many tokens a second there, so that
# what else runs would decide, and with the batches the last digits of every score.
CPU_BUDGET = 1024
_ON_GPU = BudgetSearch(first=4096, last=2**17)


def measure_token_budget(lm: Any, search: BudgetSearch = _ON_GPU) -> int:
    """Return the smallest budget that reads about as many tokens a second as any.

    It depends on model and device, not on what is to be scored.

    Args:
        lm: a ``PieceScoring``.
    """
    return find_fastest_budget(_BatchTimer(lm).seconds, search)


def find_fastest_budget(seconds: Callable[[int], float | None], search: BudgetSearch) -> int:
    """Return the smallest budget whose rate is within ``search.clearly`` of the best one tried.

    Args:
        seconds: time for a batch of so many tokens; None where there is no room for it.
    """
    # A short pass tells whether a whole one would take too long: then it is arithmetic that takes
    # the time, and more of it at once is no faster.
    short = seconds(search.first // 8)
    if short is None or short * 8 > search.seconds / 2:
        return search.first
    rates: dict[int, float] = {}
    for budget in _doubled_budgets(search):
        took = seconds(budget)
        if took is None:
            break
        faster = budget / took > (1 + search.clearly) * max(rates.values(), default=0.0)
        rates[budget] = budget / took
        if not faster or 3 * took > search.seconds / 2:
            break
    enough = (1 - search.clearly) * max(rates.values(), default=0.0)
    return next((budget for budget, rate in rates.items() if rate >= enough), search.first)


def describe_budget_conditions(lm: Any) -> dict[str, Value]:
    """What a measured budget depends on, and holds for."""
    config = getattr(lm.config, "text_config", None) or lm.config
    return {
        "device": device_name(lm),
        "model_type": str(getattr(config, "model_type", "")),
        "hidden_size": _config_number(config, "hidden_size"),
        "layers": _config_number(config, "num_hidden_layers"),
        "vocabulary": _config_number(config, "vocab_size"),
        "dtype": model_dtype(lm),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rule": "fixed" if lm.device.type == "cpu" else "measured",
    }


def _config_number(config: Any, name: str) -> int:
    number = getattr(config, name, None)
    return number if isinstance(number, int) else 0


def _doubled_budgets(search: BudgetSearch) -> Iterator[int]:
    budget = search.first
    while budget <= search.last:
        yield budget
        budget *= 2


class _BatchTimer:
    """Times of a model for batches of synthetic text."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm
        self._taken = 0  # bytes of the device per token

    def seconds(self, tokens: int) -> float | None:
        """The best time of several for a batch of so many tokens; None: there is no room for it."""
        free = measure_free_memory(str(self._lm.device))
        if self._taken and free is not None and self._taken * tokens > _SHARE_OF_ROOM * free:
            return None
        batch = self._batch(tokens)
        took: list[float] = []
        try:
            while len(took) < _TIMES or sum(took) < _SECONDS:
                took.append(self._once(batch))
        except BatchTooLargeError:
            return None
        return min(took)

    def _once(self, batch: PackedBatch) -> float:
        before = self._allocated()
        started = time.perf_counter()
        self._lm.score_batches(iter([batch]))  # its answers are on the host at the end
        took = time.perf_counter() - started
        if before is not None:
            peak = torch.cuda.max_memory_allocated(self._lm.device)
            self._taken = max(self._taken, (peak - before) // batch.input_ids.numel())
        return took

    def _allocated(self) -> int | None:
        if self._lm.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(self._lm.device)
        return torch.cuda.memory_allocated(self._lm.device)

    def _batch(self, tokens: int) -> PackedBatch:
        length = max(1, min(_LENGTH, int(self._lm.max_length), tokens))
        known = getattr(self._lm.model.get_input_embeddings(), "num_embeddings", None) or 2
        known = min(known, _TOKENS)
        drawn = torch.randint(
            known,
            (max(1, tokens // length), length + 1),
            generator=torch.Generator().manual_seed(_SEED),
        )
        scored = min(_SCORED, length)
        return pad_batch([InputTokens(ids=tuple(ids), n_scored=scored) for ids in drawn.tolist()])
