"""Points of a GGUF model: what ggml's graph shows to llama.cpp's evaluation callback.

A node of the graph is known by the weight that it reads, whose name is that of a tensor of the
file: names of nodes themselves change between releases and are missing for some. What a matrix,
norm or table of embeddings reads is its module's input, what it gives is its output.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.name_map import Permutation
from evalguard.core.trace_points import OUTPUT
from evalguard.errors import EvaluationError
from evalguard.models.runtimes.runtime import Array, Visit

# Called with (tensor, whether the question is only if it is wanted, user data).
EvalCallback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The file calls the norm after the attention otherwise where there is one before the MLP, too.
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "llama": _LAYER,
    "qwen2": _LAYER,
    "qwen3": _LAYER,
    "gemma": _LAYER,
    "gemma2": {**_LAYER, **_FOUR_NORMS},
    "gemma3": {**_LAYER, **_FOUR_NORMS},
}
_TOKENS = "inp_tokens"
# Files of these hold the rows of q and k in another order: ggml rotates neighbours here.
_ROTATES_NEIGHBOURS = ("llama",)
_WEIGHT = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<name>\w+)\.(?P<kind>weight|bias)")


def name_module(architecture: str, tensor: str) -> tuple[str, str] | None:
    """Return the Hugging Face module of a tensor of a file, and "weight" or "bias"."""
    match = _WEIGHT.fullmatch(tensor)
    if match is None:
        return None
    if match["layer"] is None:
        module = _WHOLE.get(match["name"])
        return None if module is None else (module, match["kind"])
    inside = ARCHITECTURES[architecture].get(match["name"])
    return None if inside is None else (f"model.layers.{match['layer']}.{inside}", match["kind"])


def _named_point(node: str) -> str | None:
    """Points that read no weight: the output of a layer, and the model's."""
    layer, number = node.rpartition("-")[::2]
    if layer == "l_out":
        return f"model.layers.{number}:out"
    return {"inp_scaled": "model.embed_tokens:out", "result_output": OUTPUT}.get(node)


class Node:
    """A tensor of ggml's graph, read at the address where it stands.

    The layout of ``struct ggml_tensor`` is that of ggml.h since 2023: type, buffer, ne[4], nb[4],
    op, op_params[16], flags, src[10]; ``check_layout`` compares it with what the library's own
    functions say.
    """

    def __init__(self, library: Any, address: int) -> None:
        self.c, self.address = library, address
        sizes = (ctypes.c_int64 * 8).from_address(address + 16)
        self.shape, self.strides = tuple(sizes[:4]), tuple(sizes[4:])
        self.type = ctypes.c_int32.from_address(address).value

    @property
    def name(self) -> str:
        """Its name in the graph."""
        text: bytes = self.c.ggml_get_name(ctypes.c_void_p(self.address))
        return text.decode("utf-8", "replace")

    @property
    def op(self) -> str:
        """What makes it, as "MUL_MAT"."""
        number = ctypes.c_int32.from_address(self.address + 80).value
        return bytes(self.c.ggml_op_name(number)).decode()

    def source(self, place: int) -> Node | None:
        """What it is made of."""
        address = ctypes.c_void_p.from_address(self.address + 152 + 8 * place).value
        return None if not address else Node(self.c, address)

    def check_layout(self) -> None:
        """Compare the layout with the library's own functions.

        Raises:
            EvaluationError: it is another one.
        """
        own = ctypes.c_void_p(self.address)
        elements = int(np.prod(self.shape, dtype=np.int64))
        fits = (
            min(self.shape) >= 1
            and elements == self.c.ggml_nelements(own)
            and self.strides[0] == self.c.ggml_element_size(own)
        )
        if not fits:
            raise EvaluationError(
                "this build of llama.cpp has tensors of a layout that evalguard does not know",
                hint="another version of the package may do; please report this one",
            )

    def read(self) -> NDArray[np.float32]:
        """Return its values in float32, shape (tokens, features) or with heads apart.

        Raises:
            EvaluationError: it holds quantised values, which no activation does.
        """
        dtypes: dict[int, Any] = {0: np.float32, 1: np.float16, 30: np.uint16}
        if self.type not in dtypes:
            raise EvaluationError(f"'{self.name}' holds values of ggml's type {self.type}")
        size = int(self.c.ggml_nbytes(ctypes.c_void_p(self.address)))
        raw = ctypes.create_string_buffer(size)
        self.c.ggml_backend_tensor_get(
            ctypes.c_void_p(self.address), raw, ctypes.c_size_t(0), ctypes.c_size_t(size)
        )
        axes = [axis for axis in (3, 2, 1) if self.shape[axis] > 1 or axis == 1] + [0]
        values = np.lib.stride_tricks.as_strided(
            np.frombuffer(memoryview(raw), dtype=dtypes[self.type]),
            [self.shape[axis] for axis in axes],
            [self.strides[axis] for axis in axes],
        )
        if self.type == 30:  # bfloat16 is the upper half of a float32
            return np.asarray((values.astype(np.uint32) << 16).view(np.float32))
        return np.array(values, dtype=np.float32)

    def write(self, values: Array) -> None:
        """Put other values of as many elements in.

        Raises:
            EvaluationError: it is not stored as float32 without gaps, or has another size.
        """
        own = ctypes.c_void_p(self.address)
        plain = np.ascontiguousarray(values, dtype=np.float32)
        if self.type or not self.c.ggml_is_contiguous(own) or plain.size != np.prod(self.shape):
            raise EvaluationError(
                f"a value of shape {values.shape} cannot be forced into '{self.name}', which "
                f"has {self.shape[::-1]}"
            )
        self.c.ggml_backend_tensor_set(
            own, plain.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
            ctypes.c_size_t(plain.nbytes),
        )  # fmt: skip


def declare_functions(library: Any) -> None:
    """Give the types of ggml's functions that are called here."""
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_op_name.restype = ctypes.c_char_p
    library.ggml_is_contiguous.restype = ctypes.c_bool
    for name in ("ggml_nbytes", "ggml_element_size"):
        getattr(library, name).restype = ctypes.c_size_t
    library.ggml_nelements.restype = ctypes.c_int64


class GraphVisitor:
    """Turns the nodes of one pass into points.

    The callback answers that every node is wanted, so that the graph is computed node by node: when
    it is asked about one, all before it are there, and nothing of theirs is overwritten yet.

    Args:
        library: with ggml's functions.
        architecture: one of ``ARCHITECTURES``.
        heads: of queries, of keys.
        query_scale: by which the file's queries are larger than the Hugging Face model's.

    Attributes:
        callback: what llama.cpp calls; ctypes frees it with this object.
    """

    def __init__(
        self,
        library: Any,
        architecture: str,
        heads: tuple[int, int],
        query_scale: float,
        visit: Visit,
    ) -> None:
        self._c, self._architecture, self._visit = library, architecture, visit
        self._heads, self._query_scale = heads, query_scale
        self._checked = False
        self._norm_input: Array | None = None
        self._done: tuple[str, Node] | None = None  # a module's output, unless a bias is added
        self._error: BaseException | None = None
        self.callback = EvalCallback(self._call)

    def finish(self) -> None:
        """Show the last output; raise what a call raised, which ctypes would only print."""
        if self._error is None:
            self._show_done()
        if self._error is not None:
            raise self._error

    def _call(self, address: int, asked: bool, _user: Any) -> bool:
        if self._error is None and asked:
            try:
                self._look(Node(self._c, address))
            except BaseException as error:  # noqa: BLE001  raised after the pass
                self._error = error
        return self._error is None or asked  # False after a node breaks the pass off

    def _look(self, node: Node) -> None:
        """See a node that is computed next: show what is finished, and what it reads."""
        if not self._checked:
            node.check_layout()
            self._checked = True
        op, index = node.op, 0 if node.op in ("MUL_MAT", "GET_ROWS") else 1
        weight = node.source(index) if op in ("MUL_MAT", "GET_ROWS", "MUL", "ADD") else None
        module = None if weight is None else name_module(self._architecture, weight.name)
        if module is not None and module[1] == "bias" and self._done is not None:
            self._done = (self._done[0], node)
            return
        self._show_done()
        if op in ("RMS_NORM", "NORM"):
            source = node.source(0)
            self._norm_input = None if source is None else source.read()
        elif module is not None:
            self._enter(module[0], op, node)
        elif (named := _named_point(node.name)) is not None:
            self._done = (named, node)

    def _enter(self, module: str, op: str, node: Node) -> None:
        if op == "GET_ROWS":
            # Gemma's table is scaled in the graph, and inside of the module in transformers.
            # And a second look-up beside it fills in for embeddings that are given as such.
            ids = node.source(1)
            plain = not self._architecture.startswith("gemma")
            if plain and ids is not None and ids.name == _TOKENS:
                self._done = (f"{module}:out", node)
            return
        if op == "MUL":
            held, self._norm_input = self._norm_input, None
            if held is not None:
                self._visit(f"{module}:in", lambda: held)
        elif (source := node.source(1)) is not None:
            # A table of embeddings that is multiplied with is the head that shares it.
            module = "lm_head" if module == "model.embed_tokens" else module
            self._show(f"{module}:in", source)
        self._done = (f"{module}:out", node)

    def _show_done(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._show(*done)

    def _show(self, point: str, node: Node) -> None:
        order, scale = self._layout_of(point, node.shape[0])

        def read() -> Array:
            values = node.read()
            values = values if order is None else values[..., order]
            return values if scale == 1.0 else values / np.float32(scale)

        given = self._visit(point, read)
        if given is not None:
            rows = np.asarray(given, dtype=np.float32).reshape(-1, node.shape[0]) * scale
            node.write(rows if order is None else rows[:, np.argsort(order)])

    def _layout_of(self, point: str, size: int) -> tuple[NDArray[np.intp] | None, float]:
        """Where each feature of the Hugging Face model is in the file's, and their scale."""
        projection = point.rpartition(".")[2]
        scale = self._query_scale if projection == "q_proj:out" else 1.0
        heads = {"q_proj:out": self._heads[0], "k_proj:out": self._heads[1]}.get(projection)
        if heads is None or self._architecture not in _ROTATES_NEIGHBOURS:
            return None, scale
        return Permutation(heads=heads).index(size), scale
