"""MovedBatch: a batch on the device that computes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from evalguard.models.hf.batch_cuts import BatchTooLargeError
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens
from evalguard.models.identity import device_name, model_dtype
from evalguard.models.machine import measure_free_memory

if TYPE_CHECKING:
    from evalguard.core.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceBatch:
    """A ``PackedBatch`` and its tensors on a device.

    Attributes:
        batch: where it comes from.
        input_ids: (B, T).
        places: rows and positions of what is read, shape (2, N).
        targets: the tokens that are scored there, shape (N,).
    """

    batch: PackedBatch
    input_ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> DeviceBatch:
        """Move a batch; a GPU is not waited for."""
        return cls(
            batch=batch,
            input_ids=move_tensor(batch.input_ids, device),
            places=move_tensor(torch.from_numpy(np.stack(batch.places)), device),
            targets=move_tensor(torch.from_numpy(batch.targets), device),
        )

    def at_places(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return what stands at the places that are read, shape (N, width).

        Args:
            outputs: of the model, shape (B, T or more, width): prompt tuning puts tokens of its own
                before the text.
        """
        return outputs[self._index(outputs.shape, outputs.device)]

    def put(self, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return rows at the places that are read, of zeros elsewhere.

        Args:
            rows: shape (N, width).
            shape: (B, T or more, any) of the outputs that ``at_places`` took the rows from.
        """
        outputs = rows.new_zeros((*shape[:2], rows.shape[-1]))
        outputs[self._index(outputs.shape, outputs.device)] = rows
        return outputs

    def _index(
        self, shape: Sequence[int], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, positions = self.places.to(device)
        return rows, positions + (shape[1] - self.input_ids.shape[1])


def move_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device."""
    if device.type != "cuda":
        return tensor.to(device)
    # From pinned memory a copy needs neither the GPU to finish nor this process to wait.
    return tensor.pin_memory().to(device, non_blocking=True)


# From log-probabilities of the whole vocabulary to what is kept of them: the scored tokens'.


_NUMPY_DTYPES = (torch.float32, torch.float64)


def pick_target_logprobs(
    rows: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets' log-probabilities, and whether each target is the most probable token.

    Of equally probable tokens the first counts as the most probable, as in lm-eval. Nothing waits
    for a GPU.

    Args:
        rows: log-probabilities, shape (n, vocabulary).
        targets: token ids, shape (n,), on the same device.
    """
    told = rows.gather(1, targets.unsqueeze(1)).squeeze(1)
    if rows.device.type == "cpu" and rows.dtype in _NUMPY_DTYPES:
        # torch takes ten times as long for the place of a maximum on a CPU
        best = torch.from_numpy(rows.numpy().argmax(axis=1))
    else:
        best = rows.argmax(dim=-1)
    return told, best == targets


def split_by_piece(
    reads: Sequence[PieceRead], told: torch.Tensor, greedy: torch.Tensor
) -> list[ScoredTokens]:
    """Cut the answers of many pieces apart; ``told`` and ``greedy`` have shape (N,)."""
    logprobs, flags = told.double().cpu().numpy(), greedy.tolist()
    found, end = [], 0
    for read in reads:
        start, end = end, end + len(read.positions)
        of_piece = slice(start, end)
        found.append(
            ScoredTokens(
                fed=read.piece, logprobs=logprobs[of_piece], is_greedy=all(flags[of_piece])
            )
        )
    return found


# The last layer at chosen positions only: what works position by position sees no others.


class LastLayer:
    """Modules of a model's last layer of which only the positions that are read matter.

    Hooks hand such a module the hidden rows of those positions, shape (1, n, hidden), in the place
    of all of them, and put what it makes of them back to their places, with zeros between, which
    nothing reads. Keys and values are still made of every position.

    Args:
        modules: none of them part of another; each is a function of one position's row.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = tuple(modules)
        self._batch: DeviceBatch | None = None
        self._shapes: list[torch.Size] = []  # of what was taken apart

    @contextmanager
    def at(self, batch: DeviceBatch) -> Iterator[None]:
        """Let the modules see the positions of a batch that are read, and no others."""
        with self._set(batch), ExitStack() as hooks:
            for module in self._modules:
                hooks.callback(
                    module.register_forward_pre_hook(self._take, with_kwargs=True).remove
                )
                hooks.callback(module.register_forward_hook(self._put).remove)
            yield

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let the modules see all positions of a pass within the one over a batch."""
        with self._set(None):
            yield

    @contextmanager
    def _set(self, batch: DeviceBatch | None) -> Iterator[None]:
        before, self._batch = self._batch, batch
        try:
            yield
        finally:
            self._batch = before
            self._shapes.clear()

    def _take(self, _: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._batch is None:
            return None
        (hidden,) = (*given, *named.values())
        self._shapes.append(hidden.shape)
        return (self._batch.at_places(hidden).unsqueeze(0),), {}

    def _put(self, _: torch.nn.Module, __: tuple[Any, ...], made: torch.Tensor) -> Any:
        return None if self._batch is None else self._batch.put(made[0], self._shapes.pop())


# PackedBatch: the unit of one forward pass.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceRead:
    """Where the answers for one piece stand in a batch.

    ``positions``, shape (n_scored,), are the places in ``row`` whose outputs predict the scored
    tokens, in reading order.
    """

    piece: InputTokens
    row: int
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One forward pass and where its answers stand.

    Rows are read causally, so that padding on the right needs no mask.

    Attributes:
        input_ids: (B, T) int64, padded on the right.
        reads: one for each piece.
    """

    input_ids: torch.Tensor
    reads: tuple[PieceRead, ...]

    @property
    def n_read(self) -> int:
        """Number of places that are read."""
        return sum(len(read.positions) for read in self.reads)

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and positions of all reads after one another, each of shape (N,)."""
        counts = [len(read.positions) for read in self.reads]
        rows = np.repeat(np.array([read.row for read in self.reads], dtype=np.int64), counts)
        return rows, np.concatenate([read.positions for read in self.reads])

    @property
    def targets(self) -> NDArray[np.int64]:
        """The tokens that are scored at those places, shape (N,)."""
        return np.concatenate([read.piece.scored_ids for read in self.reads])


def pad_batch(pieces: Sequence[InputTokens]) -> PackedBatch:
    """Put each piece into a row of its own; the last token of a piece is only predicted."""
    width = max(len(piece.ids) for piece in pieces) - 1
    ids = np.zeros((len(pieces), width), dtype=np.int64)
    reads = []
    for row, piece in enumerate(pieces):
        end = len(piece.ids) - 1
        ids[row, :end] = piece.ids[:-1]
        positions = np.arange(end - piece.n_scored, end)
        reads.append(PieceRead(piece=piece, row=row, positions=positions))
    return PackedBatch(input_ids=torch.from_numpy(ids), reads=tuple(reads))


# How many tokens at a time a device reads fastest, measured with the loaded model.


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
    found = getattr(config, name, None)
    return found if isinstance(found, int) else 0


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
