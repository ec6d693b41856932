"""Which modules of a candidate are quantised, what they take in its files, and in the base's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evalguard.core.keeping_precision import (
    BITSANDBYTES,
    COMPRESSED_TENSORS,
    LLAMA_CPP,
    keyword_of,
    llama_cpp_option,
    skip_option,
)
from evalguard.core.module_names import fold_numbers
from evalguard.core.tensors.grid import explain_by_grid
from evalguard.models.checkpoint_files import find_gguf_file
from evalguard.models.weight_places import WeightPlace, locate_weights
from evalguard.run.bisection.model_differences import HFSide
from evalguard.store.tensor_files.gguf_names import map_gguf_names
from evalguard.store.tensor_files.opening import open_tensors
from evalguard.store.tensor_files.stored import StoredTensor

if TYPE_CHECKING:
    import torch

_MOST_BITS = 12  # a weight, scales included: above it a format is a plain one
_READ = 65_536  # elements of a plain matrix, to see whether it was rounded
_ROWS = (16, 256)  # of it, at least and at most
_GGML_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedModule:
    """A module that is quantised, with what shares its weights (tied embeddings).

    Attributes:
        modules: names, in the model's order.
        layer: number of its layer; None outside of the layers.
        kind: its name in the layer ("mlp.down_proj"), of several experts with "*" for a number.
        elements: of its matrices.
        added_bytes: what the base's takes in its files more than it does; None: not known.
        gguf_types: of a GGUF candidate, its tensors and the types that the base's have.
    """

    modules: tuple[str, ...]
    layer: int | None
    kind: str
    elements: int = 0
    added_bytes: int | None = None
    gguf_types: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the first of its modules."""
        return self.modules[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedModules:
    """All of them, in the model's order; none where the candidate is not quantised.

    Attributes:
        layers: how many the model has.
        owner: what quantised it: "llama.cpp", or quant_method of its config; "" where unknown.
        kept: names that its config leaves out, or that its quantiser does by default.
        notes: what is not known, and why.
    """

    modules: tuple[QuantisedModule, ...] = ()
    layers: int = 0
    owner: str = ""
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def option(self, some: Iterable[QuantisedModule]) -> str:
        """Return the owner's option that leaves some of them as in the base; "" if unknown."""
        chosen = tuple(some)
        if self.owner == LLAMA_CPP:
            wanted = {name: kind for one in chosen for name, kind in one.gguf_types.items()}
            every = [name for one in self.modules for name in one.gguf_types]
            return llama_cpp_option(wanted, every) if wanted else ""
        names = [name for one in chosen for name in one.modules]
        every = [name for one in self.modules for name in one.modules]
        return skip_option(self.owner, names, every, self.kept)


def find_quantised_modules(base: HFSide, candidate: HFSide) -> QuantisedModules:
    """Find the modules with a matrix that the candidate holds in fewer bits than the base.

    Headers are read, and of files that hold plain numbers some rows of each matrix: whether these
    lie on a grid on which the base's do not.

    Raises:
        EvaluationError: a file that is damaged or not there.
    """
    if base.model is None:
        return QuantisedModules()
    every = _matrix_modules(base.model, candidate.model or base.model)
    quantiser = _Quantiser.of(candidate, base.model)
    found: list[QuantisedModule] = []
    with ExitStack() as stack:
        ours = _StoredModules.of(base, every, base.model, stack)
        theirs = _StoredModules.of(candidate, every, base.model, stack)
        for one in every:
            before, after = ours.nbytes(one), theirs.nbytes(one)
            if before is not None and after is not None and _is_packed(one, before, after):
                types = theirs.gguf_types(one, ours) if quantiser.method == LLAMA_CPP else {}
                found.append(replace(one, added_bytes=before - after, gguf_types=types))
        if not found:  # the files are plain
            rounded = (one for one in every if ours.is_rounded_in(theirs, one))
            found += filter(quantiser.takes, every) if quantiser.loads else rounded
    return QuantisedModules(
        modules=tuple(found),
        layers=len({one.layer for one in every} - {None}),
        owner=quantiser.method,
        kept=quantiser.kept_beside(found),
        notes=tuple(_notes(found, quantiser.method)),
    )


def _notes(found: Sequence[QuantisedModule], owner: str) -> Iterator[str]:
    if any(one.added_bytes is None for one in found):
        yield (
            "what restoring costs is not known: the candidate's files hold plain numbers, which "
            "say nothing of the room that they take once they are packed"
        )
    if found and owner and owner != LLAMA_CPP and not keyword_of(owner):
        yield f"no option of {owner} is known here that leaves modules out"


def _is_packed(one: QuantisedModule, before: int, after: int) -> bool:
    """Whether the candidate holds a module in fewer bits, and as a quantiser does."""
    return after < before and 8 * after < _MOST_BITS * one.elements


def _matrix_modules(model: torch.nn.Module, tied_as: torch.nn.Module) -> list[QuantisedModule]:
    """Every module with a matrix of its own that is no norm, those that share one together.

    Args:
        tied_as: the model that says which of them share weights.
    """
    state = model.state_dict()
    places: dict[str, WeightPlace] = {}
    elements: dict[str, int] = {}
    for name, place in locate_weights(model).items():
        if state[name].ndim >= 2 and place.kind != "norms":
            places.setdefault(place.module, place)
            elements[place.module] = elements.get(place.module, 0) + state[name].numel()
    weights = {
        name.rpartition(".")[0]: id(weight)
        for name, weight in tied_as.named_parameters(remove_duplicate=False)
        if weight.ndim >= 2
    }
    shared: dict[int, list[str]] = {}
    for module, place in places.items():
        shared.setdefault(weights.get(module, id(place)), []).append(module)
    return [
        QuantisedModule(
            modules=tuple(modules),
            layer=places[modules[0]].layer,
            kind=_kind_of(modules[0], places[modules[0]].layer),
            elements=elements[modules[0]],
        )
        for modules in shared.values()
    ]


def _kind_of(module: str, layer: int | None) -> str:
    """A module's name in its layer, without the numbers of experts."""
    inside = module if layer is None else module.partition(f".{layer}.")[2]
    return fold_numbers(inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantiser:
    """What quantised a candidate: ``skipped`` is None where its config names no modules.

    ``loads``: whether plain files are quantised as they are loaded.
    """

    method: str
    skipped: tuple[str, ...] | None
    head: tuple[str, ...]
    loads: bool

    @classmethod
    def of(cls, candidate: HFSide, model: torch.nn.Module) -> _Quantiser:
        told = candidate.quantisation
        config: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        method = str(config.get("quant_method") or "")
        if candidate.model_args.get("gguf_file"):
            method = LLAMA_CPP
        elif candidate.other_weights in ("load_in_4bit", "load_in_8bit"):
            method = BITSANDBYTES
        listed = config.get(keyword_of(method)) if keyword_of(method) else None
        head = model.get_output_embeddings()  # type: ignore[operator]
        return cls(
            method=method,
            skipped=tuple(map(str, listed)) if isinstance(listed, list) else None,
            head=tuple(name for name, one in model.named_modules() if one is head),
            loads=bool(method) and method != LLAMA_CPP,
        )

    @property
    def kept(self) -> tuple[str, ...]:
        """Names that are left out: those of the config, by default the head."""
        by_default = () if self.method == COMPRESSED_TENSORS else self.head
        return by_default if self.skipped is None else self.skipped

    def kept_beside(self, found: Sequence[QuantisedModule]) -> tuple[str, ...]:
        """What a new list has to leave out, too."""
        taken = {name for one in found for name in one.modules}
        return tuple(name for name in self.kept if name not in taken)

    def takes(self, one: QuantisedModule) -> bool:
        """Whether it may quantise a module as it is loaded; what it left is seen by then."""
        return self.loads and one.layer is not None and not {*one.modules} & {*self.kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredModules:
    """What a side's files hold of each module: its tensors, packed ones and scales included."""

    tensors: Mapping[str, Sequence[StoredTensor]]

    @classmethod
    def of(
        cls,
        side: HFSide,
        modules: Sequence[QuantisedModule],
        model: torch.nn.Module,
        stack: ExitStack,
    ) -> _StoredModules:
        names = {name for one in modules for name in one.modules}
        found: dict[str, list[StoredTensor]] = {}
        gguf = find_gguf_file(side.model_args)
        if gguf is None and side.files is None:
            return cls(tensors={})
        folder = None if side.files is None else side.files.files[0].parent
        opened = stack.enter_context(open_tensors(gguf or folder or ""))
        stored: Iterable[tuple[str, StoredTensor]] = opened.tensors.items()
        if gguf is not None:
            mapped = map_gguf_names(
                [*model.state_dict()], [*opened.tensors], opened.metadata, gguf_is_base=False
            )
            stored = ((rule.base, opened.tensors[rule.cand]) for rule in mapped.rules)
        for name, tensor in stored:
            holder = next((up for up in _upwards(name) if up in names), None)
            if holder is not None:
                found.setdefault(holder, []).append(tensor)
        return cls(tensors=found)

    def of_module(self, one: QuantisedModule) -> list[StoredTensor]:
        """The tensors of a module, each once."""
        found = [tensor for name in one.modules for tensor in self.tensors.get(name, ())]
        return list({(tensor.file, tensor.name): tensor for tensor in found}.values())

    def nbytes(self, one: QuantisedModule) -> int | None:
        """Bytes in the files; None where they hold nothing of it, or something unreadable."""
        found = self.of_module(one)
        if not found or any(tensor.fault and not tensor.parts for tensor in found):
            return None
        return sum(tensor.nbytes for tensor in found)

    def gguf_types(self, one: QuantisedModule, base: _StoredModules) -> dict[str, str]:
        """The quantised tensors of a module in a GGUF file, with the types that the base has."""
        theirs = base.of_module(one)
        widest = max(theirs, key=lambda tensor: tensor.elements).dtype if theirs else ""
        return {
            tensor.name: _GGML_TYPES.get(widest, widest)
            for tensor in self.of_module(one)
            if tensor.codec.quantised
        }

    def is_rounded_in(self, other: _StoredModules, one: QuantisedModule) -> bool:
        """Whether the other side's plain matrix lies on a grid on which this one's does not."""
        mine, theirs = ({t.name: t for t in side.of_module(one)} for side in (self, other))
        for name in mine.keys() & theirs.keys():
            pair = mine[name], theirs[name]
            plain = not any(t.fault or t.parts or t.codec.quantised for t in pair)
            if plain and pair[0].shape == pair[1].shape and len(pair[0].shape) >= 2:
                base, candidate = map(_first_rows, pair)
                return explain_by_grid(base, candidate) is not None
        return False


def _first_rows(tensor: StoredTensor) -> Any:
    width = tensor.elements // tensor.shape[0]
    rows = min(tensor.shape[0], max(_ROWS[0], min(_ROWS[1], _READ // width)))
    return tensor.read(0, rows * width).reshape(rows, width)


def _upwards(name: str) -> Iterator[str]:
    """The modules that a tensor is in, from the inside out."""
    while name := name.rpartition(".")[0]:
        yield name
