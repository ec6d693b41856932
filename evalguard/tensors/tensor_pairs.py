"""Which tensors of two checkpoints belong together: renamed, tied, doubled and lone ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.name_map import NameAlignment, NameMap, NamePair, NameRule
from evalguard.core.untrained_rows import is_untrained_buffer
from evalguard.errors import EvaluationError
from evalguard.tensor_files.foreign_names import map_gguf_names, map_mlx_experts
from evalguard.tensor_files.name_map_file import read_name_map
from evalguard.tensor_files.opening import TensorFiles
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensor_files.torch_files import BARE_TENSOR
from evalguard.tensors.activation_scales import align_scales
from evalguard.tensors.streamed_sums import forget_bytes
from evalguard.tensors.tensors_report import DuplicateTensors, TensorDelta

_MOST = 4  # modules in front
# What more names end with, as "w1.weight" of all experts, says nothing of what stands in front; all
# of them beside one another would take the square of their number.
_MOST_ALIKE = 16
_LEAST_SHARE = 0.5  # of the names of the side that has fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePrefixes:
    """What names begin with on each side, of which one has modules that the other leaves out."""

    base: str
    candidate: str

    @property
    def name_map(self) -> NameMap:
        """The rule that puts the one for the other; all other names are equal."""
        rule = NameRule(base=f"{self.base}**", cand=f"{self.candidate}**")
        return NameMap(rules=(rule,))

    @property
    def note(self) -> str:
        """It in a sentence without a full stop."""
        if not self.base or not self.candidate:
            side, opposite = ("base", "candidate") if self.base else ("candidate", "base")
            text = self.base or self.candidate
            return f"names of the {side} begin with '{text}', which the {opposite}'s do not"
        return f"names begin with '{self.base}' in the base, with '{self.candidate}' there"


def find_name_prefixes(
    base: Collection[str], candidate: Collection[str], common: int
) -> NamePrefixes | None:
    """Return the beginnings by which most names agree; None where as many agree already.

    Args:
        common: how many names are equal on both sides.
    """
    fewer = min(len(base), len(candidate))
    if common >= _LEAST_SHARE * fewer:
        return None
    by_rest: dict[str, list[str]] = defaultdict(list)
    for name in base:
        for front, rest in _split(name):
            by_rest[rest].append(front)
    counts: Counter[tuple[str, str]] = Counter()
    for name in candidate:
        for front, rest in _split(name):
            fronts = by_rest.get(rest, ())
            if len(fronts) <= _MOST_ALIKE:
                counts.update(
                    (base_front, front) for base_front in fronts if _fit(base_front, front)
                )
    if not counts:
        return None
    # of those by which as many agree the shortest: longer ones hold modules of the names themselves
    ours, theirs = max(counts, key=lambda pair: (counts[pair], -len(pair[0]) - len(pair[1])))
    count = counts[ours, theirs]
    enough = count >= _LEAST_SHARE * fewer and count > common
    return NamePrefixes(base=ours, candidate=theirs) if enough else None


def _split(name: str) -> Iterator[tuple[str, str]]:
    """Yield what may stand in front of a name, as "model.", and the rest of it."""
    parts = name.split(".")
    for at in range(min(_MOST + 1, len(parts))):
        yield "".join(f"{part}." for part in parts[:at]), ".".join(parts[at:])


def _fit(one: str, other: str) -> bool:
    """Whether one prefix is the other with modules left out, and neither has a wildcard."""
    shorter, longer = sorted((one.split("."), other.split(".")), key=len)
    rest = iter(longer)
    return one != other and not set(one + other) & {"*", "?"} and all(p in rest for p in shorter)


def align_names(
    base: TensorFiles, candidate: TensorFiles, name_map: Path | None
) -> tuple[NameAlignment, NameAlignment, tuple[str, ...]]:
    """Pair the names of both sides, those of their scales of activations and caches apart, and say
    what had to be taken off for that.

    Raises:
        UsageError: the name map cannot be used.
        EvaluationError: no name belongs to both.
    """
    names = _build_name_map(name_map, base, candidate)
    alignment = names.align(base.tensors, candidate.tensors)
    scales = align_scales(base, candidate, names)
    if name_map is None:
        common = len(alignment.pairs)
        prefixes = find_name_prefixes(base.tensors, candidate.tensors, common)
        if prefixes is not None:
            alignment = prefixes.name_map.align(base.tensors, candidate.tensors)
            return alignment, scales, (prefixes.note,)
    if not alignment.pairs:
        raise _nothing_common(base, candidate)
    return alignment, scales, ()


def _build_name_map(path: Path | None, base: TensorFiles, candidate: TensorFiles) -> NameMap:
    """Return the user's map, or what the forms of the files say."""
    if path is not None:
        return read_name_map(path)
    if candidate.kind == "gguf" and base.kind != "gguf":
        return map_gguf_names(
            base.tensors, candidate.tensors, candidate.metadata, gguf_is_base=False
        )
    if base.kind == "gguf" and candidate.kind != "gguf":
        return map_gguf_names(candidate.tensors, base.tensors, base.metadata, gguf_is_base=True)
    if len(base.tensors) == len(candidate.tensors) == 1 and _has_nameless(base, candidate):
        return _pair_single(next(iter(base.tensors)), next(iter(candidate.tensors)))
    return map_mlx_experts(candidate.tensors)


def _has_nameless(*sides: TensorFiles) -> bool:
    """Whether a side's only tensor has no name in its file: npy, or torch's tensor without one."""
    return any(
        side.kind == "npy" or (side.kind == "torch" and [*side.tensors] == [BARE_TENSOR])
        for side in sides
    )


def _pair_single(base: str, candidate: str) -> NameMap:
    """Two files of one tensor each are about that tensor, where one of them does not name it."""
    wild = {"*", "?"} & {*base, *candidate}
    return NameMap() if wild else NameMap(rules=(NameRule(base=base, cand=candidate),))


def _nothing_common(base: TensorFiles, candidate: TensorFiles) -> EvaluationError:
    examples = [", ".join(list(side.tensors)[:3]) for side in (base, candidate)]
    models = [side.architecture for side in (base, candidate)]
    suffix = f" ({models[0]} and {models[1]})" if all(models) and models[0] != models[1] else ""
    return EvaluationError(
        f"{base.name} and {candidate.name} have no tensor name in common{suffix}, so nothing was "
        f"compared: the base has {len(base.tensors):,} ({examples[0]} ...), the candidate "
        f"{len(candidate.tensors):,} ({examples[1]} ...)",
        hint="say with --map FILE which names belong together; docs/tensors.md has the format",
    )


_HEAD = 256  # elements by which most tensors are told apart


def find_duplicates(
    tensors: Mapping[str, StoredTensor], side: Literal["base", "candidate"]
) -> tuple[DuplicateTensors, ...]:
    """Return groups of tensors that are the same, in the order of the file.

    Tensors of one value (norm weights of 1, biases of 0) say nothing and are left out.
    """
    alike: dict[tuple[object, ...], list[StoredTensor]] = {}
    shapes: dict[tuple[object, ...], int] = {}
    readable = [tensor for tensor in tensors.values() if not tensor.fault and tensor.elements]
    for tensor in readable:
        shapes[tensor.dtype, tensor.shape] = shapes.get((tensor.dtype, tensor.shape), 0) + 1
    for tensor in readable:
        if shapes[tensor.dtype, tensor.shape] > 1:
            try:
                alike.setdefault((tensor.dtype, tensor.shape, _head(tensor)), []).append(tensor)
            except EvaluationError:  # its comparison says so
                continue
            finally:
                forget_bytes(tensor)
    groups = [group for rest in alike.values() if len(rest) > 1 for group in _equal(rest)]
    forget_bytes(*readable)
    return tuple(
        DuplicateTensors(side=side, names=tuple(member.name for member in group))
        for group in groups
    )


def _head(tensor: StoredTensor) -> bytes:
    """Bytes from its middle and its end."""
    block = tensor.codec.block
    wide = max(_HEAD // block, 1) * block
    middle = tensor.elements // 2 // block * block
    parts = [
        tensor.read_bytes(middle, min(middle + wide, tensor.elements)),
        tensor.read_bytes(max(tensor.elements - wide, 0) // block * block, tensor.elements),
    ]
    return b"".join(part.tobytes() for part in parts)


def _equal(tensors: Sequence[StoredTensor]) -> list[list[StoredTensor]]:
    """Group tensors of equal middles and ends by all their bytes."""
    groups: list[list[StoredTensor]] = []
    for tensor in tensors:
        for group in groups:
            if group[0].has_bytes_of(tensor):
                group.append(tensor)
                break
        else:
            groups.append([tensor])
    return [group for group in groups if len(group) > 1 and not _constant(group[0])]


def _constant(tensor: StoredTensor) -> bool:
    first = tensor.read(0, tensor.codec.block)[0]
    return all((tensor.read(start, stop) == first).all() for start, stop in tensor.pieces())


def name_tied(alignment: NameAlignment, duplicates: Sequence[DuplicateTensors]) -> dict[str, str]:
    """Return name on one side only -> the tensor with its values that has a partner.

    Tied embeddings are stored once by some writers and twice by others.
    """
    paired = {
        "base": {pair.base for pair in alignment.pairs},
        "candidate": {pair.cand for pair in alignment.pairs},
    }
    alone = {"base": alignment.base_only, "candidate": alignment.cand_only}
    tied: dict[str, str] = {}
    for group in duplicates:
        partner = next((name for name in group.names if name in paired[group.side]), None)
        if partner is not None:
            tied |= {name: partner for name in group.names if name in alone[group.side]}
    return tied


_MOST_LONERS = 3  # parts that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOtherwise:
    """A weight that one side has, and the other in parts of other names.

    Attributes:
        of_base: whether the base is the other.
        fault: why it cannot be read.
    """

    name: str
    of_base: bool
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneTensors:
    """Names of one side alone.

    Attributes:
        base, candidate: which the other side lacks.
        parts: beside weights that cannot be read. buffers: in which nothing was trained.
    """

    base: tuple[str, ...]
    candidate: tuple[str, ...]
    parts: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of those that are not missed, sentences without a full stop."""
        if not self.buffers:
            return ()
        count = f"{len(self.buffers):,} buffer{'s' if len(self.buffers) > 1 else ''}"
        return (
            f"{count} of one side alone, in which nothing was trained: {self.buffers[0]} first",
        )


def find_stored_otherwise(
    base: TensorFiles, candidate: TensorFiles, alignment: NameAlignment
) -> list[StoredOtherwise]:
    """Return the weights that one side lacks while it has tensors under their module that the other
    lacks: parts of a packing that is not known."""
    sides = (
        (alignment.base_only, alignment.cand_only, candidate, False),
        (alignment.cand_only, alignment.base_only, base, True),
    )
    return [
        StoredOtherwise(name=name, of_base=of_base, fault=_fault(opposite, of_base, parts))
        for here, there, opposite, of_base in sides
        for name, parts in _find_parts_of(here, there)
    ]


def _find_parts_of(here: Sequence[str], there: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    inside: dict[str, list[str]] = defaultdict(list)
    for lone_name in there:
        for module in () if lone_name.endswith((".weight", ".bias")) else _modules(lone_name):
            inside[module].append(lone_name)
    for name in here:
        parts = inside.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if parts:
            yield name, parts


def _fault(side: TensorFiles, of_base: bool, parts: Sequence[str]) -> str:
    shown = f"{', '.join(parts[:_MOST_LONERS])}{' ...' if len(parts) > _MOST_LONERS else ''}"
    return (
        f"{'base' if of_base else 'candidate'}, {side.tensors[parts[0]].file}: in its place stand "
        f"{shown}, packed in a way that evalguard does not know"
    )


def sort_lone(
    base: TensorFiles,
    candidate: TensorFiles,
    alignment: NameAlignment,
    unread: Sequence[TensorDelta],
    known: Collection[str],
) -> LoneTensors:
    """Return the names of one side alone by why they are.

    Args:
        unread: weights that cannot be read; what stands beside them are their parts.
        known: names that have a delta of their own.
    """
    only = (alignment.base_only, alignment.cand_only)
    parts = (
        _beside(only[0], [delta.name for delta in unread]),
        _beside(only[1], [delta.candidate_name for delta in unread]),
    )
    buffers = [
        [name for name in names if is_untrained_buffer(name, side.tensors[name].shape)]
        for side, names in zip((base, candidate), only, strict=True)
    ]
    of_base, of_candidate = (  # which nobody lacks
        {*known, *inside, *untrained} for inside, untrained in zip(parts, buffers, strict=True)
    )
    return LoneTensors(
        base=tuple(name for name in only[0] if name not in of_base),
        candidate=tuple(name for name in only[1] if name not in of_candidate),
        parts=tuple(name for names in parts for name in names if name not in known),
        buffers=tuple(name for names in buffers for name in names),
    )


def _beside(names: Sequence[str], weights: Sequence[str]) -> list[str]:
    """Return the names inside the modules of some weights."""
    wanted = {name.removesuffix(".weight") for name in weights}
    return [name for name in names if not wanted.isdisjoint(_modules(name))]


def _modules(name: str) -> Iterator[str]:
    """Yield the modules that a tensor is in, from the outermost: "a" and "a.b" of "a.b.c"."""
    return (name[:at] for at, letter in enumerate(name) if letter == ".")


_HEADS = ("lm_head.weight", "embed_out.weight")  # how names end; GGUF's is the whole name
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "token_embd.weight")
_BIASES = ("lm_head.bias", "embed_out.bias")
# Architectures that end in an output head, by parts of their names.
_SPEAKING = ("CausalLM", "LMHead", "ConditionalGeneration")
_NOT_STORED = "untied, and none is stored"
_NOT_USED = "tied, and another one is stored"
_UNFIT = {_NOT_STORED, _NOT_USED}


def is_of_vocabulary(name: str) -> bool:
    """Whether a tensor has a row for each token: an embedding, an output head or its bias."""
    return name.endswith((*_HEADS, *_EMBEDDINGS, *_BIASES)) or name == "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedHead:
    """A head that the candidate stores and the base ties to its embedding.

    Attributes:
        pair: what is compared; ``added``: the base stores no head, so that its embedding is the
            one that the candidate's head has to be.
    """

    pair: NamePair
    embedding: str
    added: bool


def find_tied_head(
    base: TensorFiles,
    candidate: TensorFiles,
    alignment: NameAlignment,
    duplicates: Sequence[DuplicateTensors],
) -> TiedHead | None:
    """Return the candidate's head where the base ties it, and the candidate stores it apart."""
    ours, theirs = (_find(side.tensors) for side in (base, candidate))
    if ours[1] is None or theirs[0] is None or _same(theirs, "candidate", duplicates):
        return None
    embedding, head = ours[1], theirs[0]
    if ours[0] is None:
        # its vocabulary may be padded
        alike = base.tensors[embedding].shape[1:] == candidate.tensors[head].shape[1:]
        if head not in alignment.cand_only or not alike:
            return None
        return TiedHead(pair=NamePair(base=embedding, cand=head), embedding=embedding, added=True)
    pair = next((paired for paired in alignment.pairs if paired.base == ours[0]), None)
    if pair is None or pair.cand != head or not _same(ours, "base", duplicates):
        return None
    return TiedHead(pair=pair, embedding=embedding, added=False)


def compare_declared_heads(
    base: TensorFiles, candidate: TensorFiles, duplicates: Sequence[DuplicateTensors]
) -> HyperparameterDelta | None:
    """Say where a config does not fit the output head that is stored: an untied model without one
    gets a random head, and one that is tied leaves a stored head out."""
    heads = [
        _declared_head(side, [group for group in duplicates if group.side == name])
        for name, side in (("base", base), ("candidate", candidate))
    ]
    if heads[0] == heads[1] or not _UNFIT & {*heads}:
        return None
    return HyperparameterDelta(
        name="output_head", base=heads[0], candidate=heads[1], verdict="differs",
        base_source="tie_word_embeddings", candidate_source="tie_word_embeddings",
    )  # fmt: skip


def _declared_head(side: TensorFiles, duplicates: Sequence[DuplicateTensors]) -> str:
    head, embedding = _find(side.tensors)
    text = side.config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    tied = side.config.get("tie_word_embeddings", inner)
    if head is None or embedding is None:
        speaks = any(kind in side.architecture for kind in _SPEAKING)
        lost = tied is False and speaks and embedding is not None
        return _NOT_STORED if lost else "tied to the embedding"
    head_tensor, embedding_tensor = side.tensors[head], side.tensors[embedding]
    alike = any({head, embedding} <= {*group.names} for group in duplicates)
    if (
        tied is True
        and not alike
        and (head_tensor.dtype, head_tensor.shape)
        == (embedding_tensor.dtype, embedding_tensor.shape)
    ):
        return _NOT_USED
    return "tied to the embedding" if tied is True else "stored"


def _find(tensors: Mapping[str, StoredTensor]) -> tuple[str | None, str | None]:
    """Return the names of a model's output head and of its embedding."""
    head = next((n for n in tensors if n.endswith(_HEADS) or n == "output.weight"), None)
    return head, next((n for n in tensors if n.endswith(_EMBEDDINGS)), None)


def _same(
    names: tuple[str | None, str | None], side: str, duplicates: Sequence[DuplicateTensors]
) -> bool:
    return any(group.side == side and {*names} <= {*group.names} for group in duplicates)
