"""Points of an exported ONNX graph: which of its tensors a module of the model sees or gives.

torch.onnx notes at every node in which module it was traced. A module's output is the tensor of
its nodes that nodes outside of it read, its input the one that its nodes read from outside; where
there are several of them, none is a point.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalguard.errors import EvaluationError, UsageError

_SCOPES = "pkg.torch.onnx.name_scopes"  # modules from the outermost on, and the node's own name
_WRAPPER = "model"  # what evalguard's own export holds the model in


def find_graph_points(file: Path) -> dict[str, str]:
    """Return the graph's tensors by point, in the order in which they are computed.

    Raises:
        UsageError: the package onnx is missing, which reads what nodes were traced from.
        EvaluationError: the graph does not say it.
    """
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
    return _connect(graph, scopes)


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
