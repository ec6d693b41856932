"""Pairs of stored tensors summed in pieces, by several processes, in little memory.

A piece is read, decoded and summed block by block: a block fits a core's cache, so that a dozen
passes of numpy over it cost less than reading it. Two threads would be slower than one: a pass
takes a few microseconds, and handing Python's lock over takes as many.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import Bound
from evalguard.core.name_map import Layout
from evalguard.errors import EvaluationError
from evalguard.tensor_files.packed.row_codec import RowBytes
from evalguard.tensor_files.stored_tensor import LoadedBytes, StoredTensor
from evalguard.tensors.pair_sums import PairSums, common_dtype
from evalguard.tensors.tolerances import Tolerance

Array = NDArray[Any]
_PIECE = 1 << 18  # elements: half a megabyte of bfloat16, which malloc gives out again and again
_BLOCK = 1 << 15  # elements; in whole blocks of what is stored
_DECODED = 1 << 17  # elements of what is packed that are decoded at a time, in many small steps
_TASK = 1 << 21  # elements that a process is given at a time
_AHEAD = 3  # tasks per process that wait or are summed
_WORTH_PROCESSES = 1 << 26  # elements from which on starting them pays


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPair:
    """Two stored tensors that belong together, and what they may differ by."""

    name: str
    base: StoredTensor
    candidate: StoredTensor
    layout: Layout
    tolerance: Tolerance

    @property
    def elements(self) -> int:
        """Elements of the base's."""
        return self.base.elements

    @property
    def lies_alike(self) -> bool:
        """Whether both sides hold their numbers in the same order, to be compared as they are."""
        return self.layout.changes_nothing

    @property
    def is_bounded(self) -> bool:
        """Whether the stored format says how far each element may be off."""
        formats = (self.base.codec.bound, self.candidate.codec.bound)
        return self.tolerance.snr is not None and any(bound is not None for bound in formats)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedPair:
    """A pair and its sums; ``fault`` says why there are none."""

    pair: StoredPair
    sums: PairSums
    fault: str = ""


def default_processes(elements: int) -> int:
    """Return how many processes sum: one for each core that this one may use, at most 8.

    They are forks of this process, which are not safe on macOS and not to be had on Windows.
    """
    if sys.platform != "linux" or elements < _WORTH_PROCESSES:
        return 1
    return min(len(os.sched_getaffinity(0)), 8)


def sum_pairs(
    pairs: Sequence[StoredPair],
    *,
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Iterator[SummedPair]:
    """Yield the sums of every pair, in order.

    Sums are merged in the order of the pieces, so that they do not depend on the processes.

    Args:
        pairs: of tensors that have the same shape once the layout is undone.
        processes: how many sum; with 1, it is this one.
        progress: called with the number of elements that were summed since the last call.

    Raises:
        EvaluationError: a process was killed.
    """
    if processes < 2 or sys.platform != "linux":
        for pair in pairs:
            tasks = [partial(_sum_task, pair, start, stop) for start, stop in _tasks(pair)]
            yield _merge(pair, tasks, progress)
        return
    waiting: deque[tuple[StoredPair, list[Callable[[], PairSums]]]] = deque()
    room = threading.BoundedSemaphore(_AHEAD * processes)
    pool = _start_processes(processes, pairs)
    try:
        for number, pair in enumerate(pairs):
            results: list[Callable[[], PairSums]] = []
            waiting.append((pair, results))
            for start, stop in _tasks(pair):
                room.acquire()
                future = pool.submit(_sum_numbered, number, start, stop)
                future.add_done_callback(lambda _: room.release())
                results.append(future.result)
            while len(waiting) > _AHEAD * processes:
                yield _merge(*waiting.popleft(), progress)
        while waiting:
            yield _merge(*waiting.popleft(), progress)
    except BrokenProcessPool as error:
        raise EvaluationError(
            "a process that compared tensors was killed",
            hint="where memory was short, --processes 1 needs the least",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _merge(
    pair: StoredPair,
    results: Iterable[Callable[[], PairSums]],
    progress: Callable[[int], None] | None,
) -> SummedPair:
    sums = PairSums(rtol=pair.tolerance.rtol, atol=pair.tolerance.atol)
    fault = ""
    for result in results:
        try:
            sums.merge(result())
        except (EvaluationError, ValueError) as error:
            fault = fault or str(error)
    forget_bytes(pair.base, pair.candidate)
    if progress is not None:
        progress(pair.elements)
    return SummedPair(pair=pair, sums=sums, fault=fault)


def forget_bytes(*tensors: StoredTensor) -> None:
    """Give back the memory of tensors that a library has loaded as a whole."""
    for tensor in tensors:
        if isinstance(tensor.source, LoadedBytes | RowBytes):
            tensor.source.forget()


@dataclass(slots=True)
class _OfProcess:
    """What a process was started with, and the pair that it is at."""

    pairs: Sequence[StoredPair] = ()
    one_whole_tensor: AbstractContextManager[Any] = field(default_factory=nullcontext)
    number: int = -1


_HERE = _OfProcess()


def _start_processes(processes: int, pairs: Sequence[StoredPair]) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork")
    given = (pairs, context.Lock())
    pool = ProcessPoolExecutor(processes, context, initializer=_begin_process, initargs=given)
    with warnings.catch_warnings():
        # of a fork beside threads: those of numpy's products, which it starts anew in a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        pool.submit(os.getpid).result()
    return pool


def _begin_process(pairs: Sequence[StoredPair], one_whole_tensor: Any) -> None:
    """Keep what is to be summed; end when the parent ends, and by nothing else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _HERE.pairs, _HERE.one_whole_tensor = pairs, one_whole_tensor
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _sum_numbered(number: int, start: int, stop: int) -> PairSums:
    if _HERE.number not in (-1, number):
        previous = _HERE.pairs[_HERE.number]
        forget_bytes(previous.base, previous.candidate)
    _HERE.number = number
    return _sum_task(_HERE.pairs[number], start, stop)


def _tasks(pair: StoredPair) -> Iterator[tuple[int, int]]:
    size = pair.elements
    if any(_is_whole(tensor) for tensor in (pair.base, pair.candidate)) or not pair.lies_alike:
        yield 0, size  # as a whole, so that one process alone loads it
        return
    step = _whole_blocks(pair, _TASK)
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _is_whole(tensor: StoredTensor) -> bool:
    """Whether a tensor's source keeps more of it than was asked for."""
    source = tensor.source
    return isinstance(source, LoadedBytes) or (isinstance(source, RowBytes) and source.at_once > 0)


def _whole_blocks(pair: StoredPair, elements: int) -> int:
    """Return about as many elements, as whole blocks of both sides."""
    block = math.lcm(pair.base.codec.block, pair.candidate.codec.block)
    return max(elements // block, 1) * block


def _sum_task(pair: StoredPair, start: int, stop: int) -> PairSums:
    sums = PairSums(rtol=pair.tolerance.rtol, atol=pair.tolerance.atol)
    if pair.lies_alike:
        step = _whole_blocks(pair, _PIECE)
        for at in range(start, stop, step):
            _add_piece(sums, pair, at, min(at + step, stop))
        return sums
    # Such tensors are in memory one at a time: a process with one each would need gigabytes.
    with _HERE.one_whole_tensor:
        moved, allowed = load_bounded(pair)
        moved = moved.reshape(-1)
        step = max(_PIECE // pair.base.codec.block, 1) * pair.base.codec.block
        for at in range(0, stop, step):
            base = pair.base.read(at, min(at + step, stop))
            bound = None if allowed is None else allowed.reshape(-1)[at : at + step]
            _add_blocks(sums, base, moved[at : at + step], at, bound)
    return sums


def _add_piece(sums: PairSums, pair: StoredPair, start: int, stop: int) -> None:
    raw = [side.read_bytes(start, stop) for side in (pair.base, pair.candidate)]
    codecs = [side.codec for side in (pair.base, pair.candidate)]
    same = codecs[0].dtype == codecs[1].dtype
    quantised = any(codec.quantised for codec in codecs)
    step = _whole_blocks(pair, _DECODED if quantised else _BLOCK)
    for at in range(0, stop - start, step):
        end = min(at + step, stop - start)
        parts = [
            data[at // codec.block * codec.size : end // codec.block * codec.size]
            for data, codec in zip(raw, codecs, strict=True)
        ]
        if same and _equal_bytes(*parts):
            sums.add_identical(codecs[0].decode(parts[0]))
            continue
        values = [codec.decode(part) for part, codec in zip(parts, codecs, strict=True)]
        bound = bound_parts(pair, parts, values) if pair.is_bounded else None
        allowed = None if bound is None else bound.excuse(*values)
        _add_blocks(sums, values[0], values[1], start + at, allowed)


def bound_parts(pair: StoredPair, raw: Sequence[Array], values: Sequence[Array]) -> Bound | None:
    """Return the greatest healthy error of each element of a part of both sides, flat."""
    bounds: list[Bound | None] = []
    for number, tensor in enumerate((pair.base, pair.candidate)):
        make = tensor.codec.bound
        bounds.append(
            None if make is None else make(raw[number], values[number], values[1 - number])
        )
    return _join(*bounds)


def _join(base: Bound | None, candidate: Bound | None) -> Bound | None:
    if candidate is not None:
        return candidate.join(base)
    return None if base is None else Bound(base.allowed, -base.edge)


def _add_blocks(
    sums: PairSums, base: Array, candidate: Array, offset: int, allowed: Array | None = None
) -> None:
    dtype = common_dtype(base.dtype, candidate.dtype)
    for at in range(0, base.size, _BLOCK):
        end = at + _BLOCK
        ours = np.ascontiguousarray(base[at:end], dtype=dtype)
        theirs = np.ascontiguousarray(candidate[at:end], dtype=dtype)
        sums.add(ours, theirs, offset + at)
        if allowed is not None:
            sums.judge(ours, theirs, allowed[at:end])


def _equal_bytes(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    if one[:64].tobytes() != other[:64].tobytes():  # mostly seen here
        return False
    whole = one.size // 8 * 8
    if whole and not np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)):
        return False
    return bool(np.array_equal(one[whole:], other[whole:]))


def load_candidate(pair: StoredPair) -> Array:
    """Return the whole candidate, its layout undone."""
    return pair.layout.apply(pair.candidate.load())


def load_bounded(pair: StoredPair) -> tuple[Array, Array | None]:
    """Return the whole candidate as :func:`load_candidate` does, and the greatest healthy error of
    each element, laid out alike; None where the format has no bound."""
    if not pair.is_bounded:
        return load_candidate(pair), None
    moves, size = replace(pair.layout, add=0.0, scale=1.0), pair.layout.scale
    values, own, base = pair.candidate.load(), None, None
    if pair.candidate.codec.bound is not None:
        wanted = lay_out_base(pair, values.shape)
        made = pair.candidate.codec.bound(pair.candidate.read_bytes(), values.reshape(-1), wanted)
        own = made.move(lambda errors: moves.apply(errors.reshape(values.shape)), size)
    moved, exact = pair.layout.apply(values), pair.base.load()
    if pair.base.codec.bound is not None:
        flat = np.ascontiguousarray(moved).reshape(-1)
        made = pair.base.codec.bound(pair.base.read_bytes(), exact.reshape(-1), flat)
        base = made.move(lambda errors: errors.reshape(exact.shape))
    bound = _join(base, own)
    return moved, None if bound is None else bound.excuse(exact, moved)


def lay_out_base(pair: StoredPair, shape: tuple[int, ...]) -> Array:
    """Return the base's numbers, flat, where the candidate of a shape holds them; NaN elsewhere."""
    layout = pair.layout
    size = int(np.prod(shape, dtype=np.int64))
    places = np.arange(size, dtype=np.int32 if size < 1 << 31 else np.int64).reshape(shape)
    laid = np.full(size, np.nan, dtype=np.float32)
    base = pair.base.load().astype(np.float32)
    if layout.scale:
        laid[replace(layout, add=0.0, scale=1.0).apply(places)] = (base - layout.add) / layout.scale
    return laid


def narrow_candidate(tensor: StoredTensor, layout: Layout) -> tuple[StoredTensor, Layout]:
    """Return the part of a stack or a fused tensor that a layout is about, and what is left of it.

    Only parts along the first axis lie together in the file; any other part is left to the layout.

    Raises:
        ValueError: there is no such part.
    """
    shape, first = tensor.shape, tensor.first
    take, split = layout.take, layout.split
    if take is not None and take.axis == 0 and isinstance(take.index, int) and shape:
        if not take.index < shape[0]:
            raise ValueError(f"there is no index {take.index} in {list(shape)}")
        shape = shape[1:]
        first += take.index * int(np.prod(shape, dtype=np.int64))
        take = None
    if split is not None and split.axis == 0 and take is None and shape:
        start, stop = split.bounds(shape[0])
        first += start * int(np.prod(shape[1:], dtype=np.int64))
        shape, split = (stop - start, *shape[1:]), None
    if first % tensor.codec.block:
        return tensor, layout
    return replace(tensor, shape=shape, first=first), replace(layout, take=take, split=split)
