"""Which modules of a candidate are quantised, what they take in its files, and in the base's.

llama.cpp            --tensor-type REGEX=TYPE; the expression is searched for in the names of the
                     file, in lower case (llama-quantize); the embeddings' and the head's type have
                     options of their own.
compressed-tensors   ignore: names of modules, or "re:" and an expression that matches from the
                     start of one (its match_name).
transformers         modules_to_not_convert, of bitsandbytes llm_int8_skip_modules: expressions that
                     match from the start of a name up to a dot or its end, or how a name ends (its
                     should_convert_module). torchao takes the same list through transformers.
GPTQModel            dynamic: "-:" and an expression that matches from the start of a module's name
                     (its _resolve_dynamic_override).
ModelOpt             quant_cfg: entries with a wildcard for names of quantisers, which stand in
                     their module; later ones count (its set_quantizer_by_cfg).
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.bisect.settings.hf_side import HFSide
from evalguard.core.grid import explain_by_grid
from evalguard.core.settings import fold_numbers
from evalguard.models.checkpoint_files import find_gguf_file
from evalguard.models.unloaded_models import WeightPlace, locate_weights
from evalguard.tensor_files.foreign_names import map_gguf_names
from evalguard.tensor_files.opening import open_tensors
from evalguard.tensor_files.stored_tensor import StoredTensor

if TYPE_CHECKING:
    import torch

LLAMA_CPP, COMPRESSED_TENSORS, BITSANDBYTES = "llama.cpp", "compressed-tensors", "bitsandbytes"
GPTQ, MODELOPT = "gptq", "modelopt"
# quant_method of a config -> the keyword under which its owner, or transformers, takes modules to
# leave out.
_KEYWORDS = {
    BITSANDBYTES: "llm_int8_skip_modules",
    COMPRESSED_TENSORS: "ignore",
    GPTQ: "dynamic",
    MODELOPT: "quant_cfg",
    **dict.fromkeys(
        ("torchao", "awq", "fp8", "fbgemm_fp8", "quanto", "eetq", "higgs", "mxfp4", "vptq",
         "aqlm", "spqr", "bitnet", "auto-round", "finegrained_fp8"),
        "modules_to_not_convert",
    ),
}  # fmt: skip
# Tensors of a GGUF file whose type has an option of its own, which wins over --tensor-type.
_OWN_OPTIONS = {
    "token_embd.weight": "--token-embedding-type",
    "output.weight": "--output-tensor-type",
}


def keyword_of(method: str) -> str:
    """Return the keyword of a quantiser for modules to leave out; "" where none is known."""
    return _KEYWORDS.get(method, "")


def llama_cpp_option(tensors: Mapping[str, str], quantised: Collection[str]) -> str:
    """Return arguments of llama-quantize that give tensors these types, quoted for a shell.

    Args:
        tensors: name in the file ("blk.2.ffn_down.weight") -> ggml type ("f16").
        quantised: names of all tensors that are quantised: no other of them may be hit.
    """
    arguments = [f"{_OWN_OPTIONS[n]} {kind}" for n, kind in tensors.items() if n in _OWN_OPTIONS]
    plain = [name for name in quantised if name not in _OWN_OPTIONS]
    for kind in dict.fromkeys(tensors.values()):
        names = [
            n for n, wanted_kind in tensors.items() if wanted_kind == kind and n not in _OWN_OPTIONS
        ]
        for pattern in _shortest(names, plain, _in_gguf, _searched):
            arguments.append(f"--tensor-type {shlex.quote(f'{pattern}={kind}')}")
    return " ".join(arguments)


def skip_option(
    method: str, modules: Collection[str], quantised: Collection[str], kept: Sequence[str] = ()
) -> str:
    """Return the keyword with its list of modules to leave out; "" of a quantiser without one.

    GPTQ's and ModelOpt's are entries to add to what is there.

    Args:
        method: quant_method of the config.
        modules: names of those to leave out.
        quantised: names of all modules that are quantised: no other of them may be hit.
        kept: what is left out by now: a list replaces the one that is there, and the default.
    """
    keyword = keyword_of(method)
    if not keyword:
        return ""
    if method == COMPRESSED_TENSORS:
        patterns = _shortest(modules, quantised, _as_ignored, _ignores)
        return f"{keyword}: {json.dumps([*kept, *patterns])}"
    if method == GPTQ:
        patterns = _shortest(modules, quantised, _as_started, _starts)
        return f"{keyword}: {json.dumps({f'-:{pattern}': {} for pattern in patterns})}"
    if method == MODELOPT:
        patterns = _shortest(modules, quantised, _as_wildcards, _is_wildcard_of)
        entries = [{"quantizer_name": pattern, "enable": False} for pattern in patterns]
        return f"{keyword} += {entries}"
    patterns = _shortest(modules, quantised, _as_skipped, _skips)
    return f"{keyword}={json.dumps([*kept, *patterns])}"


def _ignores(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return pattern == name


def _skips(pattern: str, name: str) -> bool:
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    matched = re.match(rf"(?:{pattern}){boundary}", name) is not None
    return matched or name.endswith(pattern)


def _starts(pattern: str, name: str) -> bool:
    return re.match(pattern, name) is not None


def _is_wildcard_of(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(f"{name}.weight_quantizer", pattern)


def _searched(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


def _as_ignored(names: Sequence[str]) -> Iterator[str]:
    yield from (f"re:{pattern}" for pattern in _as_started(names) if len(names) > 1)


def _as_started(names: Sequence[str]) -> Iterator[str]:
    if len(names) == 1:
        yield f"^{re.escape(names[0])}$"
    for end in _common_ends(names):
        yield f".*{end}$"
    for start in _common_starts(names):
        yield f"{start}[.]"


def _as_wildcards(names: Sequence[str]) -> Iterator[str]:
    if len(names) == 1:
        yield f"{names[0]}.*"
    for end in _common_ends(names):
        yield f"*.{end}.*"
    for start in _common_starts(names):
        yield f"{start}.*"


def _as_skipped(names: Sequence[str]) -> Iterator[str]:
    for end in _common_ends(names):
        yield f".*{end}"
    for start in _common_starts(names):
        yield f"{start}[.]"


def _in_gguf(names: Sequence[str]) -> Iterator[str]:
    short = [re.sub(r"\.(weight|bias)$", "", name) for name in names]
    if len(names) == 1:
        yield short[0]
    for end in _common_ends(short):
        yield end
        yield f"{end}[.]"
    for start in _common_starts(names):
        yield f"{start}[.]"


def _common_ends(names: Sequence[str]) -> Iterator[str]:
    """What all names end with, the shortest first, where they differ in numbers only."""
    folded = {fold_numbers(name) for name in names}
    if len(names) < 2 or len(folded) != 1:
        return
    parts = folded.pop().rpartition("*.")[2].split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[-count:])


def _common_starts(names: Sequence[str]) -> Iterator[str]:
    """The modules that all of several names are in, the outermost first."""
    parts = [name.split(".") for name in names]
    if len(names) < 2:
        return
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == parts[0][shared] for path in parts):
        shared += 1
    for count in range(1, shared + 1):
        yield ".".join(parts[0][:count])


def _shortest(
    names: Collection[str],
    quantised: Collection[str],
    patterns_of: Callable[[Sequence[str]], Iterator[str]],
    matches: Callable[[str, str], bool],
) -> list[str]:
    """One pattern that hits these of all quantised names and no other; else each by itself."""
    wanted = set(names)
    for pattern in patterns_of([*names]):
        if {name for name in quantised if matches(pattern, name)} == wanted:
            return [pattern]
    if len(wanted) == 1:
        return [f"^{re.escape(name)}$" if matches is _searched else name for name in names]
    return [
        pattern for name in names for pattern in _shortest([name], quantised, patterns_of, matches)
    ]


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
            wanted = {name: kind for module in chosen for name, kind in module.gguf_types.items()}
            every = [name for module in self.modules for name in module.gguf_types]
            return llama_cpp_option(wanted, every) if wanted else ""
        names = [name for module in chosen for name in module.modules]
        every = [name for module in self.modules for name in module.modules]
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
    packed: list[QuantisedModule] = []
    with ExitStack() as stack:
        names = {name for module in every for name in module.modules}
        ours = _StoredModules.of(base, names, base.model, stack)
        theirs = _StoredModules.of(candidate, names, base.model, stack)
        for module in every:
            before, after = ours.nbytes(module), theirs.nbytes(module)
            if before is not None and after is not None and _is_packed(module, before, after):
                types = theirs.gguf_types(module, ours) if quantiser.method == LLAMA_CPP else {}
                packed.append(replace(module, added_bytes=before - after, gguf_types=types))
        if not packed:  # the files are plain
            rounded = (module for module in every if ours.is_rounded_in(theirs, module))
            packed += filter(quantiser.takes, every) if quantiser.loads else rounded
    return QuantisedModules(
        modules=tuple(packed),
        layers=len({module.layer for module in every} - {None}),
        owner=quantiser.method,
        kept=quantiser.kept_beside(packed),
        notes=tuple(_notes(packed, quantiser.method)),
    )


def find_differing_modules(base: HFSide, candidate: HFSide) -> tuple[str, ...]:
    """Return the modules that two sides, of which one may be quantised, hold as other numbers.

    Modules are those with tensors of their own, in the model's order. What is packed is the same
    where its codes and scales are, to the bit; plain tensors are where their numbers are.

    Raises:
        EvaluationError: a file that is damaged or not there.
    """
    if base.model is None:
        return ()
    names = dict.fromkeys(place.module for place in locate_weights(base.model).values())
    quantised: set[str] = set()
    if candidate.quantisation != base.quantisation:
        differing = find_quantised_modules(base, candidate).modules
        quantised = {name for module in differing for name in module.modules}
    with ExitStack() as stack:
        ours, theirs = (
            _StoredModules.of(side, names, base.model, stack).tensors for side in (base, candidate)
        )
        return tuple(
            name
            for name in names
            if name in quantised or not _are_same(ours.get(name, ()), theirs.get(name, ()))
        )


def _are_same(some: Iterable[StoredTensor], others: Iterable[StoredTensor]) -> bool:
    named, theirs = ({tensor.name: tensor for tensor in side} for side in (some, others))
    return named.keys() == theirs.keys() and all(
        _is_same(tensor, theirs[name]) for name, tensor in named.items()
    )


def _is_same(one: StoredTensor, other: StoredTensor) -> bool:
    if one.parts or other.parts:
        return one.packing == other.packing and _are_same(one.parts, other.parts)
    if one.fault or other.fault or one.shape != other.shape:
        return False  # what cannot be read may be anything
    if one.dtype == other.dtype:
        return one.has_bytes_of(other)
    return not (one.codec.quantised or other.codec.quantised) and all(
        np.array_equal(one.read(start, stop), other.read(start, stop))
        for start, stop in one.pieces()
    )


def _notes(found: Sequence[QuantisedModule], owner: str) -> Iterator[str]:
    if any(module.added_bytes is None for module in found):
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
        quantisation = candidate.quantisation
        config: Mapping[str, Any] = quantisation if isinstance(quantisation, Mapping) else {}
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
            head=tuple(name for name, module in model.named_modules() if module is head),
            loads=bool(method) and method != LLAMA_CPP,
        )

    @property
    def kept(self) -> tuple[str, ...]:
        """Names that are left out: those of the config, by default the head."""
        by_default = () if self.method == COMPRESSED_TENSORS else self.head
        return by_default if self.skipped is None else self.skipped

    def kept_beside(self, found: Sequence[QuantisedModule]) -> tuple[str, ...]:
        """What a new list has to leave out, too."""
        taken = {name for module in found for name in module.modules}
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
        names: Collection[str],
        model: torch.nn.Module,
        stack: ExitStack,
    ) -> _StoredModules:
        """Read the headers of a side's files; ``names``: of the modules that are asked about."""
        stored_tensors: dict[str, list[StoredTensor]] = {}
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
                stored_tensors.setdefault(holder, []).append(tensor)
        return cls(tensors=stored_tensors)

    def of_module(self, one: QuantisedModule) -> list[StoredTensor]:
        """The tensors of a module, each once."""
        tensors = [tensor for name in one.modules for tensor in self.tensors.get(name, ())]
        return list({(tensor.file, tensor.name): tensor for tensor in tensors}.values())

    def nbytes(self, one: QuantisedModule) -> int | None:
        """Bytes in the files; None where they hold nothing of it, or something unreadable."""
        tensors = self.of_module(one)
        if not tensors or any(tensor.fault and not tensor.parts for tensor in tensors):
            return None
        return sum(tensor.nbytes for tensor in tensors)

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
