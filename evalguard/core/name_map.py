"""Name maps: which tensor of the candidate is which of the base, and how it is laid out there.

Used for weights (``evalguard tensors``) and for dumped activations (``evalguard trace``) alike.
A map is written as YAML, read by ``tensor_files/name_map_file.py``::

    map:
      - {base: "model.layers.*.self_attn.q_proj.weight", cand: "blk.*.attn_q.weight",
         permute: {heads: 32, order: interleaved}}
      - {base: "h.*.mlp.c_fc.weight", cand: "layers.*.fc1.weight", transpose: [1, 0]}
    ignore: ["*.rotary_emb.inv_freq"]

In a pattern ``*`` stands for any text without a dot, ``**`` for any text, ``?`` for one character;
the k-th of them in ``base`` stands for the same text as the k-th in ``cand``. The first rule whose
two names are both there counts; names in no rule belong together where they are equal.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import UsageError, nearest

_WILD = re.compile(r"\*\*|\*|\?")
_WILD_PATTERNS = {"**": "(.*)", "*": "([^.]*)", "?": "(.)"}
ORDERS = ("interleaved", "halves")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """Another order along an axis.

    ``order``: "interleaved" if the candidate has the two elements of a rotary pair beside each
    other (ggml, GPT-J) where the base has them half a head apart (Hugging Face), "halves" for the
    opposite, or the candidate's index of each head of the base (of each element, where ``heads``
    is 0). ``heads``: how many there are along the axis.
    """

    axis: int = 0
    heads: int = 0
    order: str | tuple[int, ...] = "interleaved"

    def index(self, size: int) -> NDArray[np.intp]:
        """Return, for each place of the base along the axis, the candidate's place.

        Raises:
            ValueError: the axis has a size that cannot be cut like this.
        """
        blocks = self.heads or (1 if isinstance(self.order, str) else size)
        if size % blocks:
            raise ValueError(f"{size} elements are not {blocks} heads of one size")
        grid = np.arange(size).reshape(blocks, size // blocks)
        if not isinstance(self.order, str):
            if sorted(self.order) != list(range(blocks)):
                raise ValueError(f"order must hold each of 0 to {blocks - 1} once")
            return grid[list(self.order)].ravel()
        if size // blocks % 2:
            raise ValueError(f"a head of {size // blocks} elements has no rotary pairs")
        if self.order == "interleaved":
            return grid.reshape(blocks, -1, 2).swapaxes(1, 2).ravel()
        return grid.reshape(blocks, 2, -1).swapaxes(1, 2).ravel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One of several parts that the candidate stores as one tensor (fused q, k and v).

    ``sizes``: of the parts along the axis; ``parts`` equal ones where it is empty. ``index``: which
    of them; from 0.
    """

    axis: int = 0
    parts: int = 1
    sizes: tuple[int, ...] = ()
    index: int = 0

    def bounds(self, size: int) -> tuple[int, int]:
        """Return where the part begins and ends along an axis of ``size``."""
        if self.sizes:
            if sum(self.sizes) != size:
                raise ValueError(f"parts of {list(self.sizes)} do not make {size}")
            start = sum(self.sizes[: self.index])
            return start, start + self.sizes[self.index]
        if size % self.parts:
            raise ValueError(f"{size} cannot be cut into {self.parts} equal parts")
        width = size // self.parts
        return self.index * width, (self.index + 1) * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One slice of a stack (experts). ``index``: a number, or "$2" for the second wildcard."""

    axis: int = 0
    index: int | str = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What makes a tensor of the candidate look like the base's, done in the order of the fields.

    ``reshape``: the new shape, -1 for one free size. ``transpose``: numpy's order of axes; () for
    none. ``scale``, then ``add``: of every element (GGUF stores Gemma's norm weights plus 1).
    """

    take: Take | None = None
    split: Split | None = None
    reshape: tuple[int, ...] = ()
    transpose: tuple[int, ...] = ()
    permute: tuple[Permutation, ...] = ()
    scale: float = 1.0
    add: float = 0.0

    @property
    def changes_nothing(self) -> bool:
        """Whether a tensor is the same before and after."""
        return self == Layout()

    def view(self, array: NDArray[Any]) -> NDArray[Any]:
        """Do all but permutations and arithmetic: a view of the array wherever numpy can.

        Raises:
            ValueError: the array has a shape to which this cannot be done.
        """
        if self.take is not None:
            index = self.take.index
            if not isinstance(index, int):
                raise ValueError(f"index {index} stands for no number")
            if not 0 <= index < array.shape[self._axis(self.take.axis, array)]:
                raise ValueError(f"there is no index {index} in {list(array.shape)}")
            array = np.moveaxis(array, self.take.axis, 0)[index]
        if self.split is not None:
            axis = self._axis(self.split.axis, array)
            start, stop = self.split.bounds(array.shape[axis])
            array = array[(slice(None),) * axis + (slice(start, stop),)]
        if self.reshape:
            array = array.reshape(self.reshape)
        return array.transpose(self.transpose) if self.transpose else array

    def indices(self, shape: Sequence[int]) -> dict[int, NDArray[np.intp]]:
        """Return axis -> the candidate's place of each of the base's, of what :meth:`view` gave."""
        indices: dict[int, NDArray[np.intp]] = {}
        for permutation in self.permute:
            if not -len(shape) <= permutation.axis < len(shape):
                raise ValueError(f"a tensor of {list(shape)} has no axis {permutation.axis}")
            axis = permutation.axis % len(shape)
            index = permutation.index(shape[axis])
            indices[axis] = indices[axis][index] if axis in indices else index
        return indices

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the candidate's tensor as the base would hold it.

        Raises:
            ValueError: the array has a shape to which this cannot be done.
        """
        array = self.view(array)
        for axis, index in self.indices(array.shape).items():
            array = np.take(array, index, axis=axis)
        return self.rescale(array)

    def rescale(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array with ``scale`` and ``add`` done, in its own dtype."""
        if self.scale != 1.0:
            array = array * array.dtype.type(self.scale)
        return array + array.dtype.type(self.add) if self.add else array

    @staticmethod
    def _axis(axis: int, array: NDArray[Any]) -> int:
        if not -array.ndim <= axis < array.ndim:
            raise ValueError(f"a tensor of {list(array.shape)} has no axis {axis}")
        return axis % array.ndim


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """Which names of the base and of the candidate belong together, and the layout."""

    base: str
    cand: str
    layout: Layout = Layout()

    def match(self, base_name: str) -> tuple[str, Layout] | None:
        """Return the candidate's name and layout of a tensor of the base, None if it is another."""
        match = _pattern(self.base).fullmatch(base_name)
        if match is None:
            return None
        texts = iter(match.groups())
        name = _WILD.sub(lambda _: next(texts, ""), self.cand)
        layout, take = self.layout, self.layout.take
        if take is not None and isinstance(take.index, str):
            number = match.groups()[int(take.index.removeprefix("$")) - 1]
            if not number.isdigit():
                return None
            values = {field.name: getattr(layout, field.name) for field in fields(Layout)}
            layout = Layout(**{**values, "take": Take(axis=take.axis, index=int(number))})
        return name, layout


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePair:
    """Two tensors that belong together, by their names."""

    base: str
    cand: str
    layout: Layout = Layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class NameAlignment:
    """All pairs, in the order of the base, and the names that are on one side only."""

    pairs: tuple[NamePair, ...]
    base_only: tuple[str, ...] = ()
    cand_only: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMap:
    """Rules in the order in which they are tried; ``ignore``: patterns of names of no interest."""

    rules: tuple[NameRule, ...] = ()
    ignore: tuple[str, ...] = ()

    def ignores(self, name: str) -> bool:
        """Whether nothing is to be said about a tensor of this name."""
        return any(_pattern(pattern).fullmatch(name) for pattern in self.ignore)

    def find(self, base_name: str, candidates: Iterable[str]) -> NamePair | None:
        """Return the pair of a tensor of the base, None where the candidate has none.

        Args:
            candidates: the candidate's names; a container with fast ``in``.
        """
        for rule in self.rules:
            matched = rule.match(base_name)
            if matched is not None and matched[0] in candidates:
                return NamePair(base=base_name, cand=matched[0], layout=matched[1])
        return NamePair(base=base_name, cand=base_name) if base_name in candidates else None

    def align(self, base: Iterable[str], candidate: Iterable[str]) -> NameAlignment:
        """Pair the names of two sides."""
        here, there = list(base), dict.fromkeys(candidate)
        ignored = {name for name in (*here, *there) if self.ignores(name)}
        pairs = [
            pair
            for name in here
            if name not in ignored and (pair := self.find(name, there)) is not None
        ]
        paired, used = {pair.base for pair in pairs}, {pair.cand for pair in pairs}
        return NameAlignment(
            pairs=tuple(pairs),
            base_only=tuple(n for n in here if n not in paired and n not in ignored),
            cand_only=tuple(n for n in there if n not in used and n not in ignored),
            ignored=tuple(sorted(ignored)),
        )


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> re.Pattern[str]:
    parts, at = [], 0
    for wild in _WILD.finditer(glob):
        parts += [re.escape(glob[at : wild.start()]), _WILD_PATTERNS[wild.group()]]
        at = wild.end()
    return re.compile("".join(parts) + re.escape(glob[at:]), re.S)


def parse_name_map(content: object, *, where: str) -> NameMap:
    """Return the map that plain data describes.

    Args:
        where: the file's name, for messages.

    Raises:
        UsageError: anything in it is not what the format says.
    """
    top = _mapping(content, where, {"map", "ignore"})
    entries = top.get("map") or []
    if not isinstance(entries, list):
        raise UsageError(f"{where}: map must be a list of rules", hint=_EXAMPLE)
    ignore = top.get("ignore") or []
    if not isinstance(ignore, list) or not all(isinstance(pattern, str) for pattern in ignore):
        raise UsageError(f"{where}: ignore must be a list of patterns", hint=_EXAMPLE)
    rules = (_rule(entry, f"{where}: rule {n}") for n, entry in enumerate(entries, start=1))
    return NameMap(rules=tuple(rules), ignore=tuple(ignore))


_EXAMPLE = 'map: [{base: "model.layers.*.mlp.up_proj.weight", cand: "blk.*.ffn_up.weight"}]'
_KEYS = {"base", "cand", *(one.name for one in fields(Layout))}


def _rule(entry: object, where: str) -> NameRule:
    given = _mapping(entry, where, _KEYS)
    names = [given.get(key) for key in ("base", "cand")]
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{where} needs the text base and the text cand", hint=_EXAMPLE)
    base, cand = map(str, names)
    counts = [_WILD.findall(name) for name in (base, cand)]
    # a stacked tensor has fewer wildcards than its slices
    if counts[0] != counts[1] and ("take" not in given or len(counts[1]) > len(counts[0])):
        raise UsageError(
            f"{where}: {base} has the wildcards {counts[0]}, {cand} has {counts[1]}",
            hint="the k-th wildcard of one stands for the same text as the k-th of the other",
        )
    try:
        return NameRule(base=base, cand=cand, layout=_layout(given, len(counts[0]), where))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}", hint=_EXAMPLE) from error


def _layout(given: Mapping[str, Any], wildcards: int, where: str) -> Layout:
    permute = given.get("permute", [])
    listed = permute if isinstance(permute, list) else [permute]
    scale, add = (_factor(given.get(key, least), key) for key, least in (("scale", 1), ("add", 0)))
    if not (math.isfinite(scale) and scale and math.isfinite(add)):
        raise ValueError("scale must be a number other than 0, and add a number")
    transpose = _numbers(given.get("transpose", []), "transpose")
    if sorted(transpose) != list(range(len(transpose))):
        raise ValueError(f"transpose must hold each axis once, as in [1, 0], got {transpose}")
    return Layout(
        take=_take(given["take"], wildcards, where) if "take" in given else None,
        split=_split(given["split"], where) if "split" in given else None,
        reshape=_numbers(given.get("reshape", []), "reshape"),
        transpose=transpose,
        permute=tuple(_permutation(entry, where) for entry in listed),
        scale=scale,
        add=add,
    )


def _factor(value: object, key: str) -> float:
    """A number; YAML has 1e-5 as a text."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return float(value)
    raise ValueError(f"{key} must be a number, got {value!r}")


def _permutation(entry: object, where: str) -> Permutation:
    given = _mapping(entry, f"{where}: permute", {"axis", "heads", "order"})
    order, heads = given.get("order", "interleaved"), _count(given.get("heads", 0), "heads")
    if isinstance(order, str) and (order not in ORDERS or not heads):
        raise ValueError(f"permute needs heads, and as order {' or '.join(ORDERS)} or a list")
    return Permutation(
        axis=_count(given.get("axis", 0), "axis", least=-8),
        heads=heads,
        order=order if isinstance(order, str) else _numbers(order, "order"),
    )


def _split(entry: object, where: str) -> Split:
    given = _mapping(entry, f"{where}: split", {"axis", "parts", "sizes", "index"})
    sizes = _numbers(given.get("sizes", []), "sizes")
    parts = _count(given.get("parts", len(sizes) or 1), "parts", least=1)
    index = _count(given.get("index", 0), "index")
    if index >= (len(sizes) or parts):
        raise ValueError(f"split has {len(sizes) or parts} parts, so no index {index}")
    axis = _count(given.get("axis", 0), "axis", least=-8)
    return Split(axis=axis, parts=parts, sizes=sizes, index=index)


def _take(entry: object, wildcards: int, where: str) -> Take:
    given = _mapping(entry, f"{where}: take", {"axis", "index"})
    index, axis = given.get("index", 0), _count(given.get("axis", 0), "axis", least=-8)
    if not isinstance(index, str):
        return Take(axis=axis, index=_count(index, "index"))
    if not re.fullmatch(r"\$[1-9]", index) or int(index[1:]) > wildcards:
        raise ValueError(f"index {index!r} must be a number or $1 to ${wildcards}")
    return Take(axis=axis, index=index)


def _mapping(content: object, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} must be a mapping, got {content!r:.60}", hint=_EXAMPLE)
    for key in content:
        if key not in known:
            near = nearest(str(key), known)
            raise UsageError(f"{where} has the unknown key {key!r}{near}", hint=_EXAMPLE)
    return {str(key): value for key, value in content.items()}


def _numbers(content: object, name: str) -> tuple[int, ...]:
    if not isinstance(content, list) or not all(type(number) is int for number in content):
        raise ValueError(f"{name} must be a list of whole numbers, got {content!r:.60}")
    return tuple(content)


def _count(content: object, name: str, *, least: int = 0) -> int:
    if type(content) is not int or content < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {content!r:.60}")
    return content
