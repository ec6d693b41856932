"""A base laid out as its candidate is: with the same outputs, from other weights.

A norm's weights multiplied into the matrices that read it, values in another basis that the next
projection takes back, queries and keys scaled against each other, the rows of an MLP or of an
expert permuted and scaled, a value's bias in the output's, the whole residual stream permuted or
rotated: every weight of it differs, rounded to 16 bits even from any that could be undone. A
model's multipliers in its weights, values that are scaled before a norm, biases of keys: no other
module's weights undo them. What was done is read off the candidate's weights and done to the
base's. It is kept only where the base so laid out still computes what it did, in float32; then the
candidate is traced beside that one. What cancels exactly between two modules needs none of this,
and is seen in the trace itself (``cancelling``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.trace_points import OUTPUT, ROOT, PointName
from evalguard.core.weight_precision import EPSILON, relative_error, round_weights
from evalguard.models.checkpoint_tensors import computing_dtype
from evalguard.tracing.measure.benign_twins import CONFIG
from evalguard.tracing.measure.module_hooks import run_pass
from evalguard.tracing.measure.suspects import WEIGHTS_THRESHOLD
from evalguard.tracing.measure.weight_rounding import (
    HeldWeight,
    pair_weights,
    plain_weights,
    role_of,
    weights_beside,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from evalguard.core.trace_points import ModelInputs
    from evalguard.tracing.measure.module_hooks import PointEvent

if TYPE_CHECKING:
    Array = NDArray[Any]
Key = tuple[str, str]  # a module and its weight
# A layout explains a weight where it leaves less than half of what it differs by.
_EXPLAINED = 0.5
# Of the relative error: what rounding to few bits leaves of a weight that was moved.
_MOVED = 0.2
# Rows or columns are the same ones, scaled, from this cosine on; a permutation has such entries.
_ALIKE = 0.9
_WORST_CONDITION = 1e4
# In float32, of numbers that were computed in another order.
_LAST_BITS = 4.0 * EPSILON["float32"]
_ALONG = 0.1  # of a rounding's squared error: by chance one part in the number of its elements
_MOST = 0.9  # of the columns: others may be damaged
_SCALED = 1e-3  # factors nearer to 1 are none
_SAME_FACTOR = 0.1  # of a factor that is read off weights, which may be wrong besides
_OTHER_SIZE = 4.0  # times a shift: another one, that is to be taken away likewise
_PROJECTIONS = 128
_PIECE = 1024  # columns that are compared with all others at a time
_ROWS = 4  # of an embedding, for each of its columns, that tell its basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayout:
    """A change of the base's weights that may leave its outputs as they are.

    Attributes:
        weights: in float32; of no axes for a number that a module holds beside its weights.
        cancels_at: the point behind which nothing of it is left.
        alike: other such weights, which have to change no output either. seen: weights which have
            to change it: else nothing that these documents read shows what is made of them.
    """

    weights: Mapping[Key, Array]
    cancels_at: str
    alike: Mapping[Key, Array] = field(default_factory=dict)
    seen: Mapping[Key, Array] = field(default_factory=dict)


def find_relayouts(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    differing: Collection[str],
    inputs: ModelInputs,
    are_harmless: Callable[[Mapping[Key, Array]], bool],
) -> list[Relayout]:
    """Find what lays the base's weights out as the candidate's are.

    Args:
        differing: modules whose weights are not the base's.
        inputs: a sequence by which it is seen which modules read a norm.
        are_harmless: whether the base with these weights still computes what it does.
    """
    weights = _Weights(base, candidate, names, differing)
    relayouts: list[Relayout] = []
    readers = _find_readers(base, inputs)
    for propose in (
        _propose_residual,
        _propose_norms,
        _propose_hidden,
        _propose_orders,
        _propose_products,
        _propose_value_biases,
        _propose_experts,
        _propose_multipliers,
        _propose_ignored,
        partial(_propose_ignored, common=True),
    ):
        parts = [
            replace(
                relayout, weights={key: _in_float32(own) for key, own in relayout.weights.items()}
            )
            for relayout in propose(weights, readers)
            if not _hides_factor(weights, relayout.weights)
        ]
        harmless = _keep_harmless(parts, weights.changed, are_harmless)
        # what goes with a layout that is left out may do harm without it
        while len(
            read := [relayout for relayout in harmless if _is_read(relayout, weights, are_harmless)]
        ) < len(harmless):
            harmless = _keep_harmless(read, weights.changed, are_harmless)
        for relayout in harmless:
            weights.changed.update(relayout.weights)
        relayouts += harmless
    return [
        replace(relayout, weights=_take_last_bits(relayout.weights, weights))
        for relayout in relayouts
    ]


def weights_of_part(
    base: torch.nn.Module, candidate: torch.nn.Module, names: Mapping[str, str], part: str
) -> Mapping[Key, Array]:
    """Give the candidate's weights of a module and all that is in it; none that is not known."""
    weights = _Weights(base, candidate, names, ())
    inside = [key for key in weights.pairs if f"{key[0]}.".startswith(f"{part}.")]
    held = {key: weights.theirs(key) for key in inside}
    return {key: theirs for key, theirs in held.items() if theirs is not None}


def _is_read(
    one: Relayout, weights: _Weights, are_harmless: Callable[[Mapping[Key, Array]], bool]
) -> bool:
    """Whether the documents would show it if a layout of its kind did harm."""
    if one.alike and not are_harmless({**weights.changed, **one.alike}):
        return False
    return not (one.seen and are_harmless({**weights.changed, **one.seen}))


def _in_float32(values: Array) -> Array:
    return np.asarray(values, np.float32) if values.ndim else values


def _hides_factor(weights: _Weights, laid: Mapping[Key, Array]) -> bool:
    """Whether one number is left of a weight that is as small as a rounding: values times 4 and
    what reads them by 3.99. A rounding leaves next to nothing along the weight itself."""
    for key, own in laid.items():
        theirs = weights.theirs(key)
        if theirs is not None and own.ndim > 1 and _leaves_factor(weights, own, theirs):
            return True
    return False


def _leaves_factor(weights: _Weights, own: Array, theirs: Array) -> bool:
    dtype = computing_dtype(weights.candidate)
    if dtype not in EPSILON:
        return False
    expected = np.asarray(own, np.float32)
    error = relative_error(expected, theirs)
    allowed = relative_error(expected, round_weights(expected, dtype))
    if not _LAST_BITS < error <= WEIGHTS_THRESHOLD * allowed:
        return False
    along = float(np.vdot(theirs - expected, expected)) / float(np.vdot(expected, expected))
    return along**2 > _ALONG * error**2


def _take_last_bits(laid: Mapping[Key, Array], weights: _Weights) -> Mapping[Key, Array]:
    """Take the candidate's own where it computed the same in float32 in another order."""
    taken = {}
    for key, own in laid.items():
        theirs = weights.theirs(key)
        near = theirs is not None and relative_error(own, theirs) <= _LAST_BITS
        taken[key] = theirs if near and theirs is not None else own
    return taken


def _keep_harmless(
    parts: Sequence[Relayout],
    before: Mapping[Key, Array],
    are_harmless: Callable[[Mapping[Key, Array]], bool],
) -> list[Relayout]:
    """Keep the largest groups of parts that change no output."""
    if not parts:
        return []
    together = dict(before)
    for part in parts:
        together.update(part.weights)
    if are_harmless(together):
        return list(parts)
    if len(parts) == 1:
        return []
    half = len(parts) // 2
    first = _keep_harmless(parts[:half], before, are_harmless)
    held = dict(before)
    for part in first:
        held.update(part.weights)
    return [*first, *_keep_harmless(parts[half:], held, are_harmless)]


_Readers = Mapping[str, Sequence[str]]  # by norm


def _find_readers(base: torch.nn.Module, inputs: ModelInputs) -> _Readers:
    """Find which modules read the very tensor that a norm makes."""
    modules = {name or ROOT: module for name, module in base.named_modules()}
    readers: dict[str, list[str]] = {}
    made: dict[int, tuple[str, torch.Tensor]] = {}  # held, so that no memory is used twice

    def visit(event: PointEvent, value: torch.Tensor) -> None:
        end, module = PointName.parse(event.name).end, modules[event.module]
        if end == "out" and _is_norm(module):
            made[value.data_ptr()] = (event.module, value)
            readers.setdefault(event.module, [])
        elif end == "in" and value.data_ptr() in made and list(module.parameters(recurse=False)):
            norm = made[value.data_ptr()][0]
            if event.module not in readers[norm]:
                readers[norm].append(event.module)

    run_pass(base, inputs, visit)
    return readers


def _is_norm(module: torch.nn.Module) -> bool:
    """Whether a module multiplies each element by a weight of its own, and holds nothing else."""
    own = {key: parameter for key, parameter in module._parameters.items() if parameter is not None}
    alone = next(module.children(), None) is None
    return alone and "weight" in own and all(parameter.ndim == 1 for parameter in own.values())


@dataclass(slots=True)
class _Weights:
    """The weights of both sides by module; those of the base as they are laid out so far."""

    base: torch.nn.Module
    candidate: torch.nn.Module
    names: Mapping[str, str]
    differing: Collection[str]
    changed: dict[Key, Array] = field(default_factory=dict)
    pairs: dict[Key, tuple[torch.Tensor, HeldWeight]] = field(init=False)
    modules: dict[str, torch.nn.Module] = field(init=False)

    def __post_init__(self) -> None:
        paired = pair_weights(self.base, self.candidate, self.names)
        self.pairs = {key: (ours, theirs) for key, ours, theirs in paired}
        self.modules = {name or ROOT: module for name, module in self.base.named_modules()}

    def own(self, key: Key) -> Array | None:
        if key in self.changed:
            return self.changed[key]
        return plain_weights(self.pairs[key][0]) if key in self.pairs else None

    def theirs(self, key: Key) -> Array | None:
        if key not in self.pairs:
            return None
        ours, held = self.pairs[key]
        values = weights_beside(ours, held)
        fits = values is not None and values.shape == tuple(ours.shape)
        return values if fits and values is not None and np.isfinite(values).all() else None

    def fits(self, key: Key, values: Array) -> bool:
        """Whether the candidate's are these, rounded to its dtype."""
        theirs, dtype = self.theirs(key), computing_dtype(self.candidate)
        if theirs is None:
            return False
        rounded = round_weights(values.astype(np.float32), dtype) if dtype in EPSILON else values
        allowed = WEIGHTS_THRESHOLD * relative_error(values, rounded)
        return _error(values, theirs) <= max(allowed, _LAST_BITS)

    def both(self, key: Key) -> tuple[Array, Array] | None:
        own, theirs = self.own(key), self.theirs(key)
        return None if own is None or theirs is None else (own, theirs)

    def matrices(self, parent: str) -> Iterator[str]:
        """Give the linear modules right below another one."""
        for name in self.modules:
            if name.rpartition(".")[0] == parent and self.is_linear(name):
                yield name

    def is_linear(self, name: str) -> bool:
        return type(self.modules[name]).__name__ == "Linear" and (name, "weight") in self.pairs


def _error(values: Array, theirs: Array) -> float:
    return relative_error(theirs, values.astype(np.float32))


# A norm's weights, multiplied into what reads it.


def _propose_norms(weights: _Weights, readers: _Readers) -> Iterator[Relayout]:
    for norm, reading in readers.items():
        if norm in weights.differing and reading:
            folded = _fold(weights, norm, reading)
            if folded is not None and _supports(weights, folded, reading):
                yield Relayout(weights=folded, cancels_at=str(PointName(reading[0], "out")))


def _fold(
    weights: _Weights, norm: str, readers: Collection[str], *, even: bool = False
) -> dict[Key, Array] | None:
    """Give the norm the candidate's weights, and its readers what makes up for it.

    Args:
        even: give it the middle one everywhere, which goes with any basis.
    """
    pair = weights.both((norm, "weight"))
    offset = _find_offset(weights.modules[norm])
    if pair is None or offset is None:
        return None
    held = np.full_like(pair[1], np.median(pair[1])) if even else pair[1]
    gain, theirs = (values.astype(np.float64) + offset for values in (pair[0], held))
    if not theirs.all() or theirs.ndim != 1:
        return None
    factors = gain / theirs
    changed: dict[Key, Array] = {(norm, "weight"): held}
    shift: Array | None = None
    if (norm, "bias") in weights.pairs:
        biases = weights.both((norm, "bias"))
        if biases is None:
            return None
        changed[norm, "bias"] = biases[1]
        shift = biases[0].astype(np.float64) - factors * biases[1]
    for reader in readers:
        keys = [key for key in weights.pairs if key[0] == reader and key[1] != "bias"]
        for key in keys:
            own = weights.own(key)
            turned = type(weights.modules[reader]).__name__ == "Conv1D"
            if own is None or own.ndim < 2 or own.shape[0 if turned else -1] != len(factors):
                continue
            changed[key] = own * (factors[:, None] if turned else factors)
            if shift is not None and shift.any():
                bias = weights.own((reader, "bias"))
                if bias is None or own.ndim != 2:
                    return None
                changed[reader, "bias"] = bias + (shift @ own if turned else own @ shift)
    return changed


def _find_offset(norm: torch.nn.Module) -> float | None:
    """Give what a norm adds to its weights before it multiplies: 1 in Gemma; None: not known."""
    import torch

    own = dict(norm.named_parameters(recurse=False))
    zeros = {key: torch.zeros_like(parameter) for key, parameter in own.items()}
    like = own["weight"]
    try:
        with torch.no_grad():
            some = torch.linspace(-1.0, 2.0, like.numel()).to(like).reshape(1, 1, -1)
            made = torch.func.functional_call(norm, zeros, (some,))
    except Exception:  # noqa: BLE001  no norm of one input: nothing is folded into it
        return None
    return float(bool(made.any())) if isinstance(made, torch.Tensor) else None


def _supports(weights: _Weights, changed: Mapping[Key, Array], modules: Collection[str]) -> bool:
    """Whether some weight of these modules is the candidate's once it is changed."""
    for key, values in changed.items():
        pair = weights.both(key) if key[0] in modules else None
        if pair is not None and values.ndim > 1 and _supports_one(values, *pair):
            return True
    return False


def _supports_one(values: Array, own: Array, theirs: Array) -> bool:
    return _error(values, theirs) < _EXPLAINED * _error(own, theirs)


# What two matrices pass on between them, in another basis.


def _propose_hidden(weights: _Weights, _readers: _Readers) -> Iterator[Relayout]:
    for consumer in weights.modules:
        if not weights.is_linear(consumer) or consumer not in weights.differing:
            continue
        pair = weights.both((consumer, "weight"))
        producers = [
            name
            for name in weights.matrices(consumer.rpartition(".")[0])
            if name != consumer and name in weights.differing
        ]
        if pair is None or not producers:
            continue
        changed = _reorder(weights, consumer, producers) or _rebase(weights, consumer, producers)
        if changed is not None and _supports(weights, changed, [consumer]):
            yield Relayout(weights=changed, cancels_at=str(PointName(consumer, "out")))


def _reorder(weights: _Weights, consumer: str, producers: Sequence[str]) -> dict[Key, Array] | None:
    """Permute and scale the columns of a matrix, and the rows that make what they read."""
    consumer_pair = weights.both((consumer, "weight"))
    if consumer_pair is None:
        return None
    made = {
        name: pair
        for name in producers
        if (pair := weights.both((name, "weight"))) and len(pair[0]) == consumer_pair[0].shape[1]
    }
    matched = _match_inner(consumer_pair, list(made.values()))
    if matched is None:
        return None
    changed: dict[Key, Array] = {
        (consumer, "weight"): consumer_pair[0][:, matched.order] * matched.factors
    }
    for number, name in enumerate(made):
        for key in ("weight", "bias"):
            values = weights.own((name, key))
            if values is not None:
                changed[name, key] = matched.lay_rows(values, number)
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    """What one matrix makes and another reads, in another order and scaled.

    Attributes:
        order: of ours, for each of theirs. factors: by which the columns that read it are
            multiplied. scaled: number of the matrix whose rows are divided by them.
    """

    order: Array
    factors: Array
    scaled: int

    def lay_rows(self, values: Array, number: int) -> Array:
        """Lay out the rows of a matrix that makes it, or its bias, by the matrix's number."""
        laid = values[self.order]
        return (laid.T / self.factors).T if number == self.scaled else laid


def _match_inner(read: tuple[Array, Array], made: Sequence[tuple[Array, Array]]) -> _Inner | None:
    """Match what is made and read by both sides' matrices; None where it is something else."""
    matched = _match_columns(*read) if made else None
    if matched is None:
        return None
    order, factors = matched
    rows = [(own[order], theirs) for own, theirs in made]
    by = np.where(np.isnan(factors), 1.0, factors)
    gains = [_error(own, theirs) - _error(own / by[:, None], theirs) for own, theirs in rows]
    scaled = int(np.argmax(gains))
    own, theirs = rows[scaled]
    with np.errstate(all="ignore"):
        inverse = np.einsum("ij,ij->i", own, own) / np.einsum("ij,ij->i", own, theirs)
    factors = np.where(np.isnan(factors), inverse, factors)
    if not (np.isfinite(factors) & (factors != 0)).all():
        return None
    return _Inner(order=order, factors=factors, scaled=scaled)


def _match_columns(own: Array, theirs: Array) -> tuple[Array, Array] | None:
    """Find which column of ours each of theirs is, and by which factor; None: they are others.

    A factor is nan where a column is like none, and stands for one that is left.
    """
    ours = own.astype(np.float64)
    lengths = np.linalg.norm(ours, axis=0)
    if not lengths.all():
        return None
    # a few random projections tell columns apart (Johnson-Lindenstrauss)
    drawn = np.random.default_rng(0).standard_normal((min(len(ours), _PROJECTIONS), len(ours)))
    seen = drawn @ (ours / lengths)
    seen /= np.linalg.norm(seen, axis=0)
    order = np.full(theirs.shape[1], -1)
    factors = np.full(theirs.shape[1], np.nan)
    for start in range(0, theirs.shape[1], _PIECE):
        piece = theirs[:, start : start + _PIECE].astype(np.float64)
        best = np.abs(seen.T @ (drawn @ piece)).argmax(axis=0)
        products = np.einsum("ij,ij->j", ours[:, best], piece)
        sizes = np.linalg.norm(piece, axis=0) * lengths[best]
        alike = np.abs(products) >= _ALIKE * np.where(sizes, sizes, np.inf)
        if not start and np.mean(alike) < _MOST:
            return None
        order[start : start + _PIECE][alike] = best[alike]
        factors[start : start + _PIECE][alike] = (products / lengths[best] ** 2)[alike]
    known = order[order >= 0]
    if len(known) < _MOST * len(order) or len(np.unique(known)) < len(known):
        return None
    order[order < 0] = np.setdiff1d(np.arange(len(order)), known)
    return order, factors


def _rebase(weights: _Weights, consumer: str, producers: Sequence[str]) -> dict[Key, Array] | None:
    """Bring the values of each head into another basis, and what reads them."""
    consumer_pair = weights.both((consumer, "weight"))
    config = getattr(weights.base, "config", None)
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    if consumer_pair is None or not heads or consumer_pair[0].shape[1] % heads:
        return None
    width = consumer_pair[0].shape[1] // heads
    for name in producers:
        pair = weights.both((name, "weight"))
        if pair is None or len(pair[0]) % width or heads * width % len(pair[0]):
            continue
        bias = weights.own((name, "bias"))
        shared = heads * width // len(pair[0])
        rows, columns = pair[0].copy(), consumer_pair[0].copy()
        shifted = None if bias is None else bias.copy()
        for group in range(len(pair[0]) // width):
            block = slice(group * width, (group + 1) * width)
            heads_read = slice(group * shared * width, (group + 1) * shared * width)
            basis = _find_basis(pair[0][block], pair[1][block])
            if basis is None:  # what is made may be damaged: then by what reads it
                inverted = _find_basis(
                    *(_by_place(matrix[:, heads_read], width) for matrix in consumer_pair)
                )
                basis = None if inverted is None else np.linalg.inv(inverted).T
            if basis is None:
                break
            rows[block] = basis @ pair[0][block]
            if bias is not None and shifted is not None:
                shifted[block] = basis @ bias[block]
            inverse = np.linalg.inv(basis)
            for head in range(group * shared, (group + 1) * shared):
                read = slice(head * width, (head + 1) * width)
                columns[:, read] = consumer_pair[0][:, read] @ inverse
        else:
            changed: dict[Key, Array] = {(name, "weight"): rows, (consumer, "weight"): columns}
            if shifted is not None:
                changed[name, "bias"] = shifted
            if all(_supports(weights, changed, [module]) for module in (name, consumer)):
                return changed
    return None


def _by_place(columns: Array, width: int) -> Array:
    """Give for each place in a head all that reads it, in all heads."""
    return np.concatenate(np.split(columns, columns.shape[1] // width, axis=1)).T


def _find_basis(own: Array, theirs: Array) -> Array | None:
    """Find the matrix by which rows become others of the same space; None where they do not."""
    ours = own.astype(np.float64)
    basis: Array = theirs @ np.linalg.pinv(ours)
    if _error(basis @ ours, theirs) > _MOVED or np.linalg.cond(basis) > _WORST_CONDITION:
        return None
    return basis


# Rows in another order, and a switch that says so.


def _propose_orders(weights: _Weights, _readers: _Readers) -> Iterator[Relayout]:
    """Put rows in the order that they have in most layers, with switches as the candidate's are:
    rotary rows in pairs, and code that reads them so."""
    changed: dict[Key, Array] = {
        (name, prefix + attribute): np.asarray(vars(beside)[attribute])
        for name, prefix, holder, beside in _pair_holders(weights)
        for attribute, held in vars(holder).items()
        if isinstance(held, bool) and vars(beside).get(attribute) is (not held)
    }
    roles: dict[str, dict[str, tuple[int, ...]]] = {}
    for key in weights.pairs if changed else ():
        pair = weights.both(key) if weights.is_linear(key[0]) and key[1] == "weight" else None
        matched = None if pair is None else _match_columns(pair[0].T, pair[1].T)
        order = () if matched is None else tuple(matched[0].tolist())
        roles.setdefault(role_of(key), {})[key[0]] = order
    seen: dict[Key, Array] = {}
    for members in roles.values():
        order, often = Counter(members.values()).most_common(1)[0]
        if 2 * often < len(members) or order in ((), tuple(range(len(order)))):
            continue
        for key in ((name, part) for name in members for part in ("weight", "bias")):
            own = weights.own(key)
            if own is not None:
                changed[key], seen[key] = own[[*order]], np.zeros_like(own)
    if seen:
        yield Relayout(weights=changed, seen=seen, cancels_at=OUTPUT)


# Inside attention: queries and keys that are only read together, values that sum up to all of one.


def _propose_products(weights: _Weights, _readers: _Readers) -> Iterator[Relayout]:
    """Multiply queries, or the weights of their norm, by what keys are divided by."""
    siblings: dict[str, list[str]] = {}
    for name, module in weights.modules.items():
        if name in weights.differing and (weights.is_linear(name) or _is_norm(module)):
            siblings.setdefault(name.rpartition(".")[0], []).append(name)
    for parent, names in siblings.items():
        ways = (_scale_against(weights, *pair) for pair in permutations(names, 2))
        changed = next(filter(None, ways), None)
        if changed is not None:
            zeros = {key: np.zeros_like(own) for key, own in changed.items()}
            at = str(PointName(parent, "out"))
            yield Relayout(weights=changed, seen=zeros, cancels_at=at)


def _scale_against(weights: _Weights, queries: str, keys: str) -> dict[Key, Array] | None:
    first, second = (weights.both((name, "weight")) for name in (queries, keys))
    if first is None or second is None or first[0].ndim != second[0].ndim:
        return None
    offset = _find_offset(weights.modules[keys]) if second[0].ndim == 1 else 0.0
    if offset is None:
        return None
    (query, own_query), (key, own_key) = (
        [values + offset for values in pair] for pair in (first, second)
    )
    width, several = _find_width(weights, keys) or len(key), len(query) // len(key)
    if len(query) != several * len(key) or len(key) % width:
        return None
    rows, theirs = (values.reshape(len(key), -1).astype(np.float64) for values in (key, own_key))
    with np.errstate(all="ignore"):
        ratios = np.einsum("ij,ij->i", rows, rows) / np.einsum("ij,ij->i", rows, theirs)
    if not (np.isfinite(ratios) & (ratios != 0)).all() or np.abs(ratios - 1.0).max() <= _SCALED:
        return None
    for by in _list_factors(ratios.reshape(-1, width)):
        times = np.repeat(by, several, axis=0).reshape(-1)
        laid = (query.T * times).T, (key.T / by.reshape(-1)).T
        names = (queries, "weight"), (keys, "weight")
        changed = {name: values - offset for name, values in zip(names, laid, strict=True)}
        if any(weights.fits(name, values) for name, values in changed.items()) and all(
            _supports_one(values, *pair)
            for values, pair in zip(laid, ((query, own_query), (key, own_key)), strict=True)
        ):
            for name, factors in ((queries, times), (keys, 1.0 / by.reshape(-1))):
                bias = weights.own((name, "bias"))
                if bias is not None:
                    changed[name, "bias"] = bias * factors
            return changed
    return None


def _list_factors(found: Array) -> Iterator[Array]:
    """Give what factors of (heads, width) may be without their rounding: one number, one of each
    head, one of each pair that is rotated together, in halves or adjacent, and each its own."""
    heads, width = found.shape
    yield np.full_like(found, np.median(found))
    yield np.repeat(np.median(found, axis=1, keepdims=True), width, axis=1)
    if width % 2 == 0:
        yield np.tile(found.reshape(heads, 2, -1).mean(axis=1), 2)
        yield np.repeat(found.reshape(heads, -1, 2).mean(axis=2), 2, axis=1)
    yield found


def _find_width(weights: _Weights, name: str) -> int:
    """How wide a head of the attention is that a module is in; 0 where that is not known."""
    return int(getattr(weights.modules[name.rpartition(".")[0] or ROOT], "head_dim", 0) or 0)


def _propose_value_biases(weights: _Weights, _readers: _Readers) -> Iterator[Relayout]:
    """Add to an output what the bias of values is there: the shares of attention sum up to 1."""
    biased = [name for name in weights.differing if (name, "bias") in weights.pairs]
    for reader, name in permutations(sorted(biased), 2):
        bias, values = (weights.both((module, "bias")) for module in (reader, name))
        weight = weights.own((reader, "weight"))
        together = reader.rpartition(".")[0] == name.rpartition(".")[0]
        if not together or bias is None or values is None or weight is None or weight.ndim != 2:
            continue
        columns = weight.T if type(weights.modules[reader]).__name__ == "Conv1D" else weight
        count, width = columns.shape[1], _find_width(weights, name) or 1
        held = values[0].copy()
        held[-count:] = values[1][-count:]  # the last ones where queries and keys are before them
        moved = (values[0] - held)[-count:]
        if count % len(moved) or len(moved) % width:
            continue
        read = np.repeat(moved.reshape(-1, width), count // len(moved), axis=0).reshape(-1)
        laid = bias[0] + columns @ read
        if _supports_one(laid, *bias):
            yield Relayout(
                weights={(name, "bias"): held, (reader, "bias"): laid},
                cancels_at=str(PointName(reader, "out")),
            )


# The same inside experts that one tensor holds.


def _propose_experts(weights: _Weights, _readers: _Readers) -> Iterator[Relayout]:
    for name in weights.modules:
        keys = [key for key in weights.pairs if key[0] == name and name in weights.differing]
        held = {key: pair for key in keys if (pair := weights.both(key)) is not None}
        stacks = {key: pair for key, pair in held.items() if pair[0].ndim == 3}
        ways = [
            laid
            for reader, turned, mixed in product(stacks, (False, True), (False, True))
            if (laid := _lay_experts(weights, stacks, reader, turned=turned, mixed=mixed))
        ]
        if ways:
            yield min(ways, key=lambda relayout: _left_of(relayout, stacks))


def _left_of(laid: Relayout, stacks: Mapping[Key, tuple[Array, Array]]) -> float:
    return sum(_error(own, stacks[key][1]) for key, own in laid.weights.items() if key in stacks)


def _lay_experts(
    weights: _Weights,
    stacks: Mapping[Key, tuple[Array, Array]],
    reader: Key,
    *,
    turned: bool,
    mixed: bool,
) -> Relayout | None:
    """Permute and scale what a matrix of each expert reads, with the rows that make it.

    All experts are computed by one code: what cancels in one that is read does so in the others, if
    the same matrix is scaled in all of them.

    Args:
        reader: stack of the matrices that read. turned: whether its rows do, and not its columns.
        mixed: whether the rows of two matrices in one tensor take turns.
    """
    count, width = len(stacks[reader][0]), stacks[reader][0].shape[1 if turned else 2]
    changed = {key: own.copy() for key, (own, _) in stacks.items() if len(own) == count}
    sides = {
        key: [stack.swapaxes(1, 2) if turned else stack for stack in (changed[key], stacks[key][1])]
        for key in changed
    }
    parts: list[tuple[Key, Array]] = []  # rows of a stack that are one matrix in each expert
    for key, (own, _) in sides.items():
        rows, several = np.arange(own.shape[1]), own.shape[1] // width
        if key != reader and several in (1, 2) and len(rows) == several * width:
            cut = rows.reshape(width, several).T if mixed else rows.reshape(several, width)
            parts += [(key, indices) for indices in cut]
    moved, scaled = list[int](), set[int]()
    for expert in range(count):
        ours, theirs = (stack[expert] for stack in sides[reader])
        made = [tuple(stack[expert][rows] for stack in sides[key]) for key, rows in parts]
        matched = _match_inner((ours, theirs), [(own, counterpart) for own, counterpart in made])
        if matched is None:
            continue
        laid = ours[:, matched.order] * matched.factors
        pairs = [
            (matched.lay_rows(own, n), counterpart) for n, (own, counterpart) in enumerate(made)
        ]
        if not _supports_one(laid, ours, theirs) or any(
            _leaves_factor(weights, *pair) for pair in ((laid, theirs), *pairs)
        ):
            continue
        ours[:] = laid
        for number, (key, rows) in enumerate(parts):
            sides[key][0][expert, rows] = pairs[number][0]
            bias = (key[0], f"{key[1]}_bias")
            if bias in weights.pairs and (own_bias := weights.own(bias)) is not None:
                values = changed.setdefault(bias, own_bias.copy())[expert]
                values[rows] = matched.lay_rows(values[rows], number)
        moved.append(expert)
        if np.abs(matched.factors - 1.0).max() > _SCALED:
            scaled.add(matched.scaled)
    if len(scaled) > 1 or not moved:
        return None
    seen = changed[reader].copy()
    seen[moved] = 0.0
    return Relayout(
        weights=changed, seen={reader: seen}, cancels_at=str(PointName(reader[0], "out"))
    )


# The whole residual stream, in another basis.


def _propose_residual(weights: _Weights, readers: _Readers) -> Iterator[Relayout]:
    basis = _find_residual_basis(weights)
    if basis is None:
        return
    width, mixes = len(basis), bool((np.abs(basis) < _ALIKE).all(axis=0).any())
    folded: dict[Key, Array] = {}
    for norm, reading in readers.items() if mixes else ():
        folded.update(_fold(weights, norm, reading, even=True) or {})
    roles: dict[str, dict[Key, Array]] = {}
    for key in weights.pairs:
        own = weights.own(key)
        if own is not None and width in own.shape:
            roles.setdefault(role_of(key), {})[key] = folded.get(key, own)
    changed: dict[Key, Array] = dict(folded)
    for members in roles.values():
        errors = [0.0 for _ in _list_bases(next(iter(members.values())).shape, basis, mixes=mixes)]
        for key, own in members.items():
            theirs = weights.theirs(key)
            if theirs is None:
                continue
            for number, lay in enumerate(_list_bases(own.shape, basis, mixes=mixes)):
                errors[number] += _error(lay(own), theirs)
        best = int(np.argmin(errors))
        for key, own in members.items():
            changed[key] = _list_bases(own.shape, basis, mixes=mixes)[best](own)
    yield Relayout(weights=changed, cancels_at=OUTPUT)


def _list_bases(
    shape: Sequence[int], basis: Array, *, mixes: bool
) -> Sequence[Callable[[Array], Array]]:
    """Give the ways in which a weight may lie to a residual stream in this basis."""
    width = len(basis)

    def keep(own: Array) -> Array:
        return own

    def read(own: Array) -> Array:
        return own @ basis

    def write(own: Array) -> Array:
        return np.moveaxis(np.moveaxis(own, -2, -1) @ basis, -1, -2)

    if len(shape) == 1:  # of a norm, by which elements are multiplied, or of a bias
        return (keep, read) if mixes else (keep, read, lambda own: own @ np.abs(basis))
    ways = [keep]
    if shape[-1] == width:
        ways.append(read)
    if shape[-2] == width:
        ways.append(write)
    if shape[-1] == shape[-2] == width:
        ways.append(lambda own: read(write(own)))
    return ways


def _find_residual_basis(weights: _Weights) -> Array | None:
    """Find the orthogonal matrix that brings the base's embedding to the candidate's."""
    name = next((n for n in weights.modules if _is_embedding(weights, n)), "")
    pair = weights.both((name, "weight")) if name in weights.differing else None
    if pair is None or pair[0].shape[0] < pair[0].shape[1]:
        return None
    count, width = pair[0].shape
    rows = np.linspace(0, count - 1, min(count, _ROWS * width)).astype(np.intp)
    own, theirs = (values[rows].astype(np.float64) for values in pair)
    if _error(own, theirs) < _MOVED:
        return None
    intact = np.ones(len(own), dtype=bool)
    for _ in range(2):  # without rows that are damaged beside
        left, _, right = np.linalg.svd(own[intact].T @ theirs[intact])
        basis: Array = left @ right
        apart = np.linalg.norm(own @ basis - theirs, axis=1)
        intact = apart <= 3.0 * np.median(apart)
    if _error(own[intact] @ basis, theirs[intact]) > _MOVED:
        return None
    if (np.abs(basis).max(axis=0) >= _ALIKE).all():
        basis = np.round(basis)
    return basis


def _is_embedding(weights: _Weights, name: str) -> bool:
    return (
        type(weights.modules[name]).__name__.endswith("Embedding")
        and (
            name,
            "weight",
        )
        in weights.pairs
    )


# Numbers by which a model multiplies, in its weights.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """A factor that a module of the base holds, and which the candidate's holds not, or another."""

    key: Key
    ours: float
    theirs: float


def _propose_multipliers(weights: _Weights, _readers: _Readers) -> Iterator[Relayout]:
    """Take numbers as the candidate has them, with the weights of the roles that make up for it."""
    numbers: dict[str, list[_Number]] = {}
    for number in _find_numbers(weights):
        numbers.setdefault(number.key[1], []).append(number)
    ratios = {name: held[0].ours / held[0].theirs for name, held in numbers.items()}
    joined: list[tuple[set[str], dict[Key, Array]]] = []
    for members in _find_factors(weights).values() if numbers else ():
        factor = float(np.median([*members.values()]))
        used, exact = _compose(factor, ratios)
        if not used:
            continue
        changed: dict[Key, Array] = {}
        for key in members:
            own = weights.own(key)
            if own is not None:
                changed[key] = own * exact
        apart = []
        for names, held in joined:
            if names & used:
                used, changed = used | names, {**changed, **held}
            else:
                apart.append((names, held))
        joined = [*apart, (used, changed)]
    for names, changed in joined:
        held_numbers = {
            number.key: np.asarray(number.theirs) for name in names for number in numbers[name]
        }
        yield Relayout(weights={**changed, **held_numbers}, cancels_at=OUTPUT)


def _find_numbers(weights: _Weights) -> Iterator[_Number]:
    """Find factors that modules, or their configuration, hold otherwise in the candidate.

    One by whose name it is a factor, and which the candidate does not hold, is 1 there.
    """
    for name, prefix, holder, beside in _pair_holders(weights):
        for attribute in (*vars(holder), *getattr(holder, "_buffers", ())):
            ours, own = _read_number(holder, attribute), _read_number(beside, attribute)
            unused = own is None or (prefix and own == ours)  # what is written need not be read
            if unused and ("scal" in attribute or "multipl" in attribute):
                own = 1.0
            if ours and own and ours != own:
                yield _Number(key=(name, prefix + attribute), ours=ours, theirs=own)


def _pair_holders(weights: _Weights) -> Iterator[tuple[str, str, Any, Any]]:
    """Give what holds a model's numbers and switches on both sides: modules, configurations; by the
    module's name, and what its attributes are called by before their own names."""
    theirs = {ours: name for name, ours in weights.names.items()}
    candidate_modules = {name or ROOT: module for name, module in weights.candidate.named_modules()}
    for name, module in weights.modules.items():
        counterpart = candidate_modules.get(theirs.get(name, ""))
        if counterpart is None:
            continue
        yield name, "", module, counterpart
        if name == ROOT and hasattr(module, "config"):
            yield name, CONFIG, module.config, getattr(counterpart, "config", None)


def _read_number(holder: Any, attribute: str) -> float | None:
    held: Any = getattr(holder, attribute, None)
    if getattr(held, "ndim", None) == 0:
        return float(held) if held.is_floating_point() else None
    return float(held) if isinstance(held, (int, float)) and held is not True else None


def _find_factors(weights: _Weights) -> Mapping[str, Mapping[Key, float]]:
    """Find by which factor weights of a role are the base's, where they are in most layers."""
    roles: dict[str, dict[Key, float]] = {}
    fitting: Counter[str] = Counter()
    for key in weights.pairs:
        pair = weights.both(key)
        if pair is None or not pair[0].any():
            continue
        own, theirs = (values.astype(np.float64) for values in pair)
        factor, role = float(np.vdot(own, theirs) / np.vdot(own, own)), role_of(key)
        roles.setdefault(role, {})[key] = factor
        scaled = factor > 0.0 and abs(factor - 1.0) > _SCALED
        fitting[role] += scaled and weights.fits(key, own * factor)
    return {role: held for role, held in roles.items() if 2 * fitting[role] > len(held)}


def _compose(factor: float, ratios: Mapping[str, float]) -> tuple[set[str], float]:
    """Give a factor as one of these ratios, or two of them multiplied, either way up."""
    # by halves where queries and keys each have a square root of it
    sizes = (1.0, -1.0, 0.5, -0.5)
    ways = [
        ({name}, ratio**size) for name, ratio in ratios.items() if ratio > 0.0 for size in sizes
    ]
    for some in (ways, [(a | b, x * y) for a, x in ways for b, y in ways if a != b]):
        near = {by: abs(factor / by - 1.0) for _, by in some}
        best = min(near, key=lambda by: near[by], default=0.0)
        if best and near[best] <= _SAME_FACTOR:
            alike = [names for names, by in some if abs(by / best - 1.0) <= EPSILON["float32"]]
            return set[str]().union(*alike), best
    return set(), 1.0


# What every reader takes away.


def _propose_ignored(
    weights: _Weights, _readers: _Readers, *, common: bool = False
) -> Iterator[Relayout]:
    """Scale what a norm behind it brings to its size, and shift what a softmax or a norm centres.

    As it is in most layers at once. That nothing is left of it on these documents could be chance
    where little of a weight is read: the rows of a neuron that no token wakes. So weights that are
    zero have to be seen, and another shift must not be.

    Args:
        common: take one factor in all layers; else each layer's own, where that is all that it is.
    """
    for members in _find_factors(weights).values():
        middle, changed = float(np.median([*members.values()])), {}
        for key, factor in members.items():
            own = weights.own(key)
            if own is not None and not common and weights.fits(key, own * factor):
                changed[key] = own * factor
            elif own is not None:
                changed[key] = own * middle
        if changed:
            zeros = {key: np.zeros_like(own) for key, own in changed.items()}
            yield Relayout(weights=changed, seen=zeros, cancels_at=OUTPUT)
    shifted: dict[tuple[str, Sequence[int]], dict[Key, tuple[Array, Array]]] = {}
    for key in weights.pairs:
        pair = weights.both(key) if key[0] in weights.differing else None
        shift = None if pair is None else _find_shift(weights, key, *pair)
        if shift is not None and pair is not None:
            shifted.setdefault((role_of(key), shift.shape), {})[key] = pair[0], shift
    drawn = np.random.default_rng(0)
    for members_shifted in shifted.values():
        laid, alike = {}, {}
        nonzero = [found_shift != 0 for _, found_shift in members_shifted.values()]
        often = np.mean(nonzero, axis=0) > _EXPLAINED if common else True
        for key, (own, found_shift) in members_shifted.items():
            shift = np.where(often, found_shift, 0.0)
            laid[key] = own + shift
            size = _OTHER_SIZE * max(float(np.abs(shift).max()), float(np.abs(own).mean()))
            alike[key] = own + size * (shift != 0) * drawn.choice([-1.0, 1.0], size=shift.shape)
        if np.any(often):
            yield Relayout(weights=laid, alike=alike, cancels_at=OUTPUT)


def _find_shift(weights: _Weights, key: Key, own: Array, theirs: Array) -> Array | None:
    """Find what was added to a bias, or for every input to all outputs; None: something else.

    Returns:
        It, in a shape that goes with the weight's.
    """
    difference = theirs.astype(np.float64) - own
    kind = type(weights.modules[key[0]]).__name__
    last = own.ndim == 1 or kind == "Conv1D" or kind.endswith("Embedding")
    shift: Array = difference.mean(axis=-1 if last else -2, keepdims=True)
    if shift.any() and weights.fits(key, own + shift):
        return shift
    if key[1] != "bias" or own.ndim > 1:
        return None
    dtype = computing_dtype(weights.candidate)
    rounding = _OTHER_SIZE * EPSILON.get(dtype, EPSILON["float32"]) * np.abs(own)
    return np.where(np.abs(difference) > rounding, difference, 0.0)
