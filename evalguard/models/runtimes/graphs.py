"""Exported graphs: ONNX by ONNX Runtime, and ONNX or OpenVINO's own format by OpenVINO.

torch.onnx notes at every node in which module it was traced. A module's output is the tensor of
its nodes that nodes outside of it read, its input the one that its nodes read from outside; where
there are several of them, none is a point.
"""

from __future__ import annotations

import ast
import json
import math
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.hyperparameters import HeldValue
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.models.runtimes.runtime import Logits, Runtime, RuntimeArguments, Visit
from evalguard.models.runtimes.tokenizer import TextTokenizer, TokenizedRuntime, open_tokenizer

_SCOPES = "pkg.torch.onnx.name_scopes"  # modules from the outermost on, and the node's own name
_WRAPPER = "model"  # what evalguard's own export holds the model in


def find_graph_points(file: Path) -> dict[str, str]:
    """Return the graph's tensors by point, in the order in which they are computed.

    Raises:
        UsageError: the package onnx is missing, which reads what nodes were traced from.
        EvaluationError: the graph does not say it.
    """
    return _connect(*_read_scopes(file))


def read_graph_constants(file: Path) -> list[HeldValue]:
    """Return the hyper-parameters that stand in the graph, by module, in common names.

    That is: epsilons of norms, factors between a product of queries and keys and its softmax, caps
    by tanh, activations. What the graph computes in another way is not among them.

    Raises:
        UsageError, EvaluationError: as ``find_graph_points``.
    """
    graph, scopes = _read_scopes(file)
    return list(_Constants(graph, scopes).read())


def _read_scopes(file: Path) -> tuple[Any, list[list[str]]]:
    """The graph, and of every node the modules that it was traced in."""
    try:
        import onnx
    except ImportError as error:
        raise UsageError(
            "the tensors of an ONNX graph are found with the package onnx, which is missing",
            hint="requirements: [onnx, ...] on the model, or pip install onnx",
        ) from error
    graph = onnx.load(str(file), load_external_data=False).graph
    scopes = [_modules_of(node) for node in graph.node]
    if not any(scopes):
        raise EvaluationError(
            f"{file} does not say from which modules its nodes come",
            hint="build: {call: evalguard.recipes.onnx:export} exports it with their names",
        )
    if all(path[0] == _WRAPPER for path in scopes if path):
        scopes = [[module.removeprefix(f"{_WRAPPER}.") for module in path[1:]] for path in scopes]
    return graph, scopes


def _modules_of(node: Any) -> list[str]:
    """Paths of the modules that a node was traced in, the outermost first; [] where unknown."""
    listing = next(
        (metadata.value for metadata in node.metadata_props if metadata.key == _SCOPES), "[]"
    )
    return [
        str(name) for name in ast.literal_eval(listing)[:-1] if name and not name.startswith("_")
    ]


def _connect(graph: Any, scopes: Sequence[Sequence[str]]) -> dict[str, str]:
    readers: dict[str, list[Sequence[str]]] = defaultdict(list)
    for node, modules in zip(graph.node, scopes, strict=True):
        for tensor in node.input:
            readers[tensor].append(modules)
    for output in graph.output:
        readers[output.name].append(())
    makers: dict[str, Sequence[str]] = {}
    seen: dict[str, dict[str, None]] = defaultdict(dict)  # tensors by point, each once
    parents = {parent for path in scopes for parent in path[:-1]}
    for node, modules in zip(graph.node, scopes, strict=True):
        leaf = modules[-1] if modules else ""
        if leaf and leaf not in parents:
            for tensor in node.input:
                if tensor in makers and leaf not in makers[tensor]:
                    seen[f"{leaf}:in"][tensor] = None
        for tensor in node.output:
            if node.op_type != "Constant":
                makers[tensor] = modules
            for module in reversed(modules):
                if any(module not in reader for reader in readers[tensor]):
                    seen[f"{module}:out"][tensor] = None
    return {point: next(iter(tensors)) for point, tensors in seen.items() if len(tensors) == 1}


class _Constants:
    """Single numbers of a graph, and the nodes that compute with them."""

    def __init__(self, graph: Any, scopes: Sequence[Sequence[str]]) -> None:
        self._modules = [path[-1] if path else "" for path in scopes]
        self._nodes = list(graph.node)
        self._makers = {tensor: node for node in self._nodes for tensor in node.output}
        self._readers: dict[str, list[Any]] = defaultdict(list)
        for node in self._nodes:
            for tensor in node.input:
                self._readers[tensor].append(node)
        self._numbers = _read_numbers(graph)

    def read(self) -> Iterator[HeldValue]:
        """Yield what the nodes compute with, in their order."""
        operations: dict[str, set[str]] = defaultdict(set)
        for node, module in zip(self._nodes, self._modules, strict=True):
            operations[module].add(node.op_type)
            for name, value in self._read_node(node, module):
                # a number of the graph is a tensor
                dtype = "" if isinstance(value, str) else "float32"
                yield HeldValue(
                    name=name, value=value, module=module, source=node.op_type, dtype=dtype
                )
        for module, own in operations.items():
            if own - {"Constant", "Cast"} == {"Sigmoid", "Mul"}:
                yield HeldValue(name="activation", value="silu", module=module, source="Sigmoid")

    def _read_node(self, node: Any, module: str) -> Iterator[tuple[str, str | float]]:
        given = {attribute.name: attribute for attribute in node.attribute}
        if "epsilon" in given:
            yield "norm_eps", float(given["epsilon"].f)
        elif node.op_type == "Add" and self._has_reader(node, "Sqrt"):
            yield from (("norm_eps", number) for number in self._numbers_of(node))
        elif node.op_type == "Gelu":
            tanh = "approximate" in given and given["approximate"].s == b"tanh"
            yield "activation", "gelu (tanh)" if tanh else "gelu (erf)"
        elif node.op_type == "Relu":
            yield "activation", "relu"
        elif node.op_type == "Tanh" and (cap := self._find_cap(node)) is not None:
            yield "attention_softcap" if module else "final_softcap", cap
        elif node.op_type == "Softmax" and (scale := self._find_scale(node)) is not None:
            yield "attention_scale", scale

    def _has_reader(self, node: Any, operation: str) -> bool:
        return any(reader.op_type == operation for reader in self._readers[node.output[0]])

    def _numbers_of(self, node: Any) -> list[float]:
        return [self._numbers[tensor] for tensor in node.input if tensor in self._numbers]

    def _find_cap(self, tanh: Any) -> float | None:
        """The number by which the input of a tanh is divided and its output multiplied."""
        before = self._makers.get(tanh.input[0])
        divisors = self._numbers_of(before) if before and before.op_type == "Div" else []
        for after in self._readers[tanh.output[0]]:
            if divisors and after.op_type == "Mul" and self._numbers_of(after) == divisors:
                return divisors[0]
        return None

    def _find_scale(self, softmax: Any) -> float | None:
        """All factors between a product of two computed tensors and its softmax, or on its sides.

        None where there are none: they may be anywhere, in the weights too. A cap divides and
        multiplies by one number.
        """
        product, scale = self._walk_back(softmax.input[0], ("Add", "Tanh", "Cast", "Reshape"))
        if product is None or product.op_type != "MatMul":
            return None
        for side in product.input:
            scale *= self._walk_back(side, ("Transpose", "Reshape", "Cast"))[1]
        return None if scale == 1.0 else scale

    def _walk_back(self, tensor: str, through: Sequence[str]) -> tuple[Any, float]:
        """The node from which a tensor comes by some operations and factors; all factors."""
        factor = 1.0
        while (node := self._makers.get(tensor)) is not None:
            places = [n for n, name in enumerate(node.input) if name in self._numbers]
            if node.op_type == "Mul" and places:
                factor *= self._numbers[node.input[places[0]]]
                tensor = node.input[1 - places[0]]
            elif node.op_type == "Div" and places == [1]:
                factor /= self._numbers[node.input[1]]
                tensor = node.input[0]
            elif node.op_type in through:
                tensor = node.input[0]
            else:
                break
        return node, factor


def _read_numbers(graph: Any) -> dict[str, float]:
    """Tensors of the graph that are one number each and stand in its file."""
    from onnx import numpy_helper

    tensors = {initializer.name: initializer for initializer in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                tensors[node.output[0]] = attribute.t
    numbers = {}
    for name, tensor in tensors.items():
        if math.prod(tensor.dims) == 1 and not tensor.external_data:
            numbers[name] = float(numpy_helper.to_array(tensor).reshape(()))
    return numbers


_SUFFIXES = {"onnx": (".onnx",), "openvino": (".xml", ".onnx")}
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_length")
_OPTIMIZATIONS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_PRECISIONS = ("f32", "bf16", "f16")
_OUTPUT = "logits"
_PAST = "past_key_values"  # optimum's name for the cache's inputs
# Tensors that a run gives: more take memory, fewer another run of the graph.
_AT_ONCE = 8
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Input:
    """One input of a graph; a dimension of None has any size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _Texts:
    """What is read beside the graph."""

    tokenizer: TextTokenizer
    add_bos: bool | None
    prefix: int | None
    max_length: int
    files: tuple[Path, ...]


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a folder with a graph, its tokenizer and, if there is one, its config.json.

    model_args: ``pretrained`` (the folder, or its graph), ``file`` (of several graphs),
    ``tokenizer`` (another folder), ``max_length`` (default: the configuration's), ``threads``,
    ``add_bos_token``, ``prefix_token_id``; of onnx ``provider`` (CPUExecutionProvider) and
    ``optimization`` (disabled, basic, extended, all); of openvino ``target`` (CPU) and
    ``precision`` (f32, bf16, f16; default: what OpenVINO takes).

    Raises:
        UsageError: no such file, or an argument that does not exist.
        EvaluationError: the graph does not load, or does not turn token ids into logits.
    """
    folder, graph = find_graph(arguments)
    threads = arguments.take_whole("threads", arguments.threads, least=0)
    named = Path(str(arguments.take("tokenizer", str(folder))))
    tokenizer = open_tokenizer(named, trust_remote_code=arguments.code_allowed)
    texts = _Texts(
        tokenizer=tokenizer,
        add_bos=arguments.take_flag("add_bos_token"),
        prefix=arguments.take_whole("prefix_token_id", least=0),
        max_length=arguments.take_whole("max_length") or _configured_length(folder),
        # Weights may lie in files of any name beside the graph.
        files=(folder, *tokenizer.files),
    )
    if arguments.model_type == "onnx":
        provider = str(arguments.take("provider", "CPUExecutionProvider"))
        level = arguments.choose("optimization", tuple(_OPTIMIZATIONS), "all")
        arguments.check_all_taken()
        return _ONNXRuntime(graph, texts, provider, level, threads)
    target = str(arguments.take("target", "CPU"))
    precision = arguments.take("precision")
    if precision is not None:
        arguments.choose("precision", _PRECISIONS, "f32")
    arguments.check_all_taken()
    return _OpenVINORuntime(graph, texts, target, precision, threads)


def find_graph(arguments: RuntimeArguments) -> tuple[Path, Path]:
    """Return the folder of a model, and its graph.

    Raises:
        UsageError: there is none, or which of several is not said.
    """
    folder, named = arguments.path(), arguments.take("file")
    if not folder.is_dir():
        if named is not None:
            raise UsageError(
                f"model_args.file: {folder} is the graph already", target="model_args.file"
            )
        folder, named = folder.parent, folder.name
    return folder, _choose_graph(folder, named, _SUFFIXES[arguments.model_type])


def _choose_graph(folder: Path, named: str | None, suffixes: Sequence[str]) -> Path:
    known = sorted(
        path for path in folder.rglob("*") if path.suffix in suffixes and path.stat().st_size
    )
    names = [str(path.relative_to(folder)) for path in known]
    if named is not None:
        if named not in names:
            raise UsageError(
                f"model_args.file: {folder} has no graph '{named}'{nearest(named, names)}",
                hint=f"one of: {', '.join(names)}" if names else "",
                target="model_args.file",
            )
        return folder / named
    if len(known) != 1:
        raise UsageError(
            f"{folder} has {len(known)} graphs ({', '.join(suffixes)})",
            hint=f"model_args.file: one of {', '.join(names)}"
            if names
            else "build: {call: evalguard.recipes.onnx:export} makes one",
        )
    return known[0]


def _configured_length(folder: Path) -> int:
    """Tokens that the model may read, of its configuration.

    Raises:
        UsageError: it does not say.
    """
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    config = config.get("text_config") or config
    for name in _LENGTHS:
        if isinstance(config.get(name), int) and config[name] > 0:
            return int(config[name])
    raise UsageError(
        f"nothing in {folder} says how many tokens the model reads",
        hint="set model_args.max_length",
    )


class _GraphRuntime(TokenizedRuntime):
    """A graph that reads one text at a time, without a cache."""

    def __init__(self, graph: Path, texts: _Texts, inputs: Sequence[_Input]) -> None:
        super().__init__(texts.tokenizer, add_bos=texts.add_bos, prefix=texts.prefix)
        self.max_length, self.files = texts.max_length, texts.files
        self._graph, self._inputs = graph, tuple(inputs)
        for graph_input in self._inputs:
            fixed = (
                graph_input.shape[1]
                if graph_input.name == "input_ids" and len(graph_input.shape) == 2
                else None
            )
            if fixed is not None:
                raise EvaluationError(
                    f"{graph} reads texts of exactly {fixed} tokens",
                    hint="export it with a length that may vary",
                )
        self.vocabulary_size = self.logits([self.prefix_token_id], 0).shape[1]

    @abstractmethod
    def _run(self, feed: Mapping[str, Array]) -> Array:
        """Logits of one text, shape (1, n, V)."""

    @abstractmethod
    def _read_tensors(self, feed: Mapping[str, Array], tensors: Sequence[str]) -> Iterator[Array]:
        """Yield tensors of the graph by their names, all from one and the same compiled graph.

        Which operations a library fuses depends on what it has to give.
        """

    def visit_activations(self, ids: Sequence[int], visit: Visit) -> None:
        """Read a text, and show the tensors that modules of the model see or give."""
        points = self._points()
        feed = {graph_input.name: self._fill(graph_input, ids) for graph_input in self._inputs}
        values = self._read_tensors(feed, list(points.values()))
        for point, value in zip(points, values, strict=True):
            if value.dtype.kind == "f" and visit(point, partial(_keep, value)) is not None:
                raise UsageError("nothing can be forced into an exported graph")

    def _points(self) -> Mapping[str, str]:
        """Tensors of the graph by point."""
        if self._graph.suffix == ".onnx":
            return find_graph_points(self._graph)
        raise UsageError(
            f"{self._graph} does not say from which modules its tensors come",
            hint="OpenVINO reads an ONNX graph, too, which does",
        )

    def held_values(self) -> Sequence[HeldValue]:
        """What stands in an ONNX graph, by module; OpenVINO's own format does not say of whom."""
        return read_graph_constants(self._graph) if self._graph.suffix == ".onnx" else ()

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits of one text."""
        output = self._run(
            {graph_input.name: self._fill(graph_input, ids) for graph_input in self._inputs}
        )
        if output.ndim != 3 or output.shape[:2] != (1, len(ids)):
            raise EvaluationError(
                f"{self._graph} gave logits of shape {output.shape} for {len(ids)} tokens",
                hint="a graph of a causal language model gives (1, tokens, vocabulary)",
            )
        return np.asarray(output[0, first:], dtype=np.float32)

    def _fill(self, one: _Input, ids: Sequence[int]) -> Array:
        row = (1, len(ids))
        values: Array
        if one.name == "input_ids":
            values = np.asarray([ids])
        elif one.name == "attention_mask":
            values = np.ones(row)
        elif one.name == "position_ids":
            values = np.arange(len(ids))[None]
        elif one.name == "use_cache_branch":
            values = np.zeros(1)
        elif one.name.startswith(_PAST):  # a cache in which nothing is
            batch, *sizes = one.shape
            values = np.zeros((batch or 1, *(size or 0 for size in sizes)))
        else:
            raise EvaluationError(
                f"{self._graph} wants the input '{one.name}', which is not known here",
                hint="known: input_ids, attention_mask, position_ids, past_key_values.*",
            )
        return values.astype(one.dtype)


class _ONNXRuntime(_GraphRuntime):
    def __init__(self, graph: Path, texts: _Texts, provider: str, level: str, threads: int) -> None:
        import onnxruntime

        known = onnxruntime.get_available_providers()
        if provider not in known:
            raise UsageError(
                f"model_args.provider: this ONNX Runtime has no {provider}"
                f"{nearest(provider, known)}",
                hint=f"it has: {', '.join(known)}",
                target="model_args.provider",
            )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, _OPTIMIZATIONS[level]
        )
        if threads:
            options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(graph), sess_options=options, providers=[provider]
            )
        except Exception as error:
            raise EvaluationError(f"{graph} cannot be loaded: {error}") from error
        self._threads = threads
        self._effective: Mapping[str, Value] = {
            "provider": self._session.get_providers()[0],
            "optimization": level,
        }
        self.device = "cpu" if provider.startswith("CPU") else provider
        self.caveats = (f"ONNX Runtime {onnxruntime.__version__}, {provider}",)
        inputs = [
            _Input(
                graph_input.name,
                tuple(size if isinstance(size, int) else None for size in graph_input.shape),
                _NUMPY_NAMES.get(graph_input.type, "float32"),
            )
            for graph_input in self._session.get_inputs()
        ]
        names = [output.name for output in self._session.get_outputs()]
        self._output = _OUTPUT if _OUTPUT in names else names[0]
        super().__init__(graph, texts, inputs)

    def _run(self, feed: Mapping[str, Array]) -> Array:
        output: Array = self._session.run([self._output], dict(feed))[0]
        return output

    def _read_tensors(self, feed: Mapping[str, Array], tensors: Sequence[str]) -> Iterator[Array]:
        """Run the graph several times, each time for a few tensors."""
        import onnx
        import onnxruntime

        model = onnx.load(str(self._graph), load_external_data=False)
        known = {output.name for output in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in known
        )
        options = onnxruntime.SessionOptions()
        level = _OPTIMIZATIONS[str(self._effective["optimization"])]
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(self._graph.parent.absolute()))
        session: Any = onnxruntime.InferenceSession(
            model.SerializeToString(), sess_options=options, providers=self._session.get_providers()
        )
        for start in range(0, len(tensors), _AT_ONCE):
            yield from session.run(list(tensors[start : start + _AT_ONCE]), dict(feed))

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the session has."""
        return self._effective

    def close(self) -> None:
        """Let go of the session."""
        self._session = None


def _keep(value: Array) -> Array:
    return value


_NUMPY_NAMES = {
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
}


class _OpenVINORuntime(_GraphRuntime):
    def __init__(
        self, graph: Path, texts: _Texts, target: str, precision: str | None, threads: int
    ) -> None:
        import openvino

        properties: dict[str, Any] = (
            {} if precision is None else {"INFERENCE_PRECISION_HINT": precision}
        )
        if threads:
            properties["INFERENCE_NUM_THREADS"] = threads
        check_target(target)
        try:
            core = openvino.Core()
            model = core.read_model(str(graph))
            self._compiled: Any = core.compile_model(model, target, properties)
        except Exception as error:
            raise EvaluationError(f"{graph} cannot be loaded: {error}") from error
        self._told = properties
        taken = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.device, self.dtype = target.lower(), _DTYPES.get(taken, taken)
        self._effective: Mapping[str, Value] = {"target": target, "precision": taken}
        version = openvino.__version__.partition("-")[0]
        chosen = "" if precision else ", which OpenVINO chose: model_args.precision sets it"
        self.caveats = (f"OpenVINO {version} computes in {self.dtype}{chosen}",)
        inputs = [
            _Input(
                graph_input.any_name,
                tuple(
                    None if size.is_dynamic else size.get_length()
                    for size in graph_input.partial_shape
                ),
                np.dtype(graph_input.element_type.to_dtype()).name,
            )
            for graph_input in self._compiled.inputs
        ]
        outputs = self._compiled.outputs
        self._output = next((o for o in outputs if _OUTPUT in o.names), outputs[0])
        super().__init__(graph, texts, inputs)

    def _run(self, feed: Mapping[str, Array]) -> Array:
        output: Array = self._compiled.create_infer_request().infer(dict(feed))[self._output]
        return output

    def _read_tensors(self, feed: Mapping[str, Array], tensors: Sequence[str]) -> Iterator[Array]:
        """Run the graph once; OpenVINO holds all that it has to give."""
        import openvino

        core = openvino.Core()
        model = core.read_model(str(self._graph))
        model.add_outputs(list(dict.fromkeys(tensors)))
        compiled: Any = core.compile_model(model, str(self._effective["target"]), self._told)
        given = compiled.create_infer_request().infer(dict(feed))
        for name in tensors:
            yield np.asarray(given[name])

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the compiled model has."""
        return self._effective

    def close(self) -> None:
        """Let go of the model."""
        self._compiled = None


# Devices of OpenVINO's plugins, one of several by its number, and what shares the work among them.
_DEVICE = r"(CPU|GPU|NPU|NVIDIA|TEMPLATE)(\.\w+)*(\(\d+\))?"
_TARGET = re.compile(rf"{_DEVICE}|(AUTO|MULTI|HETERO|BATCH)(:-?{_DEVICE}(,-?{_DEVICE})*)?")


def check_target(target: object) -> None:
    """Refuse what is no device of OpenVINO's, whether or not it is here.

    Raises:
        UsageError: saying how one is written.
    """
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise UsageError(
            f"model_args.target: {target!r} is not a device of OpenVINO's",
            hint="e.g. CPU, GPU, GPU.1, NPU, AUTO, HETERO:GPU,CPU",
            target="model_args.target",
        )


_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
