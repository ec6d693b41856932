"""What an exported ONNX graph shows of the model's modules: the tensors that they see and give, and
the constants that they compute with.

torch.onnx notes at every node in which module it was traced. A module's output is the tensor of
its nodes that nodes outside of it read, its input the one that its nodes read from outside; where
there are several of them, none is a point.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.errors import EvaluationError, UsageError

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
        scopes = [[one.removeprefix(f"{_WRAPPER}.") for one in path[1:]] for path in scopes]
    return graph, scopes


def _modules_of(node: Any) -> list[str]:
    """Paths of the modules that a node was traced in, the outermost first; [] where unknown."""
    told = next((one.value for one in node.metadata_props if one.key == _SCOPES), "[]")
    return [str(one) for one in ast.literal_eval(told)[:-1] if one and not one.startswith("_")]


def _connect(graph: Any, scopes: Sequence[Sequence[str]]) -> dict[str, str]:
    readers: dict[str, list[Sequence[str]]] = defaultdict(list)
    for node, modules in zip(graph.node, scopes, strict=True):
        for tensor in node.input:
            readers[tensor].append(modules)
    for output in graph.output:
        readers[output.name].append(())
    makers: dict[str, Sequence[str]] = {}
    seen: dict[str, dict[str, None]] = defaultdict(dict)  # tensors by point, each once
    parents = {one for path in scopes for one in path[:-1]}
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
        given = {one.name: one for one in node.attribute}
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
        return any(one.op_type == operation for one in self._readers[node.output[0]])

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
            places = [n for n, one in enumerate(node.input) if one in self._numbers]
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

    tensors = {one.name: one for one in graph.initializer}
    for node in graph.node:
        for one in node.attribute if node.op_type == "Constant" else ():
            if one.name == "value":
                tensors[node.output[0]] = one.t
    found = {}
    for name, tensor in tensors.items():
        if math.prod(tensor.dims) == 1 and not tensor.external_data:
            found[name] = float(numpy_helper.to_array(tensor).reshape(()))
    return found
