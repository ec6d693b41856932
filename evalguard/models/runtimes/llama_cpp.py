"""llama.cpp: GGUF files, read by the library's C functions.

The wheel ``xllamacpp`` (or ``llama-cpp-python``) brings the library. Its parameter structures have
other fields from release to release, so that their layout is not believed but found: each field is
located by the defaults that the library itself fills in, and what was set is read back from the
context's own functions and from the library's log before anything is scored.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.hyperparameters import ABSENT, HeldValue
from evalguard.core.settings import Value
from evalguard.core.split_files import gguf_parts
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes.ggml_points import ARCHITECTURES, GraphVisitor, declare_functions
from evalguard.models.runtimes.runtime import Logits, Runtime, RuntimeArguments, Visit

_LARGEST = 1024  # bytes: more than any of the structures has had
# ggml's numbers of types that a KV cache can be held in.
_KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
_FLASH = {"auto": -1, "off": 0, "on": 1}
_SPECIAL, _DROPPED = 1, 0
_QUERY_SCALE_KEY = "evalguard.query_scale"
_FALLBACKS_KEY = "evalguard.fallbacks"  # where evalguard's recipe names them


class _Blob(ctypes.Structure):
    """A structure of unknown size: larger ones are copied by value without harm."""

    _fields_ = (("data", ctypes.c_ubyte * _LARGEST),)

    def integer(self, offset: int) -> int:
        return int.from_bytes(bytes(self.data[offset : offset + 4]), "little", signed=True)

    def put(self, offset: int, value: int) -> None:
        self.data[offset : offset + 4] = value.to_bytes(4, "little", signed=True)

    def put_pointer(self, offset: int, function: Any) -> None:
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        self.data[offset : offset + 8] = address.to_bytes(8, "little")


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a GGUF file.

    model_args: ``pretrained`` (the file), ``n_ctx``, ``n_batch``, ``n_ubatch``, ``threads``,
    ``type_k``, ``type_v``, ``flash_attn`` (on, off, auto), ``tokenizer`` (a folder, in place of the
    file's own), ``add_bos_token``, ``prefix_token_id``.

    Raises:
        UsageError: no such file, or an argument that does not exist.
        EvaluationError: the library is missing or of a layout that is not known, or the file is
            damaged.
    """
    path = find_model_file(arguments)
    options = {
        "n_ctx": arguments.take_whole("n_ctx"),
        "n_batch": arguments.take_whole("n_batch"),
        "n_ubatch": arguments.take_whole("n_ubatch"),
        "threads": arguments.take_whole("threads", arguments.threads or None),
        "type_k": arguments.choose("type_k", tuple(_KV_TYPES), "f16"),
        "type_v": arguments.choose("type_v", tuple(_KV_TYPES), "f16"),
        "flash_attn": arguments.choose("flash_attn", tuple(_FLASH), "off"),
    }
    texts = {
        "tokenizer": arguments.take("tokenizer"),
        "add_bos_token": arguments.take_flag("add_bos_token"),
        "prefix_token_id": arguments.take_whole("prefix_token_id", least=0),
    }
    arguments.check_all_taken()
    return LlamaCpp(_Library(), path, options, texts)


def find_model_file(arguments: RuntimeArguments) -> Path:
    """Return the GGUF file that is to be loaded.

    Raises:
        UsageError: there is none, or a folder holds several.
    """
    path = arguments.path()
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise UsageError(
            f"{path} has {len(files)} GGUF files",
            hint="name one of them in model_args.pretrained",
        )
    return files[0]


class _Library:
    """The library with the types of the functions that are called, and its log."""

    def __init__(self) -> None:
        self.name, path = _find_library()
        self.c = ctypes.CDLL(str(path))
        self.log: list[str] = []
        self._keep = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda _level, text, _user: self.log.append((text or b"").decode("utf-8", "replace"))
        )
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(self.c, name).restype = _Blob
        for name, restype in _RETURNS.items():
            getattr(self.c, name).restype = restype
        self.c.llama_batch_init.restype = _Batch
        self.c.llama_log_set(self._keep, None)
        self.c.llama_backend_init()

    def logged(self) -> str:
        """What was logged since the last call."""
        text = "".join(self.log)
        self.log.clear()
        return text


_POINTER = ctypes.c_void_p
_RETURNS: Mapping[str, Any] = {
    "llama_model_load_from_file": _POINTER,
    "llama_init_from_model": _POINTER,
    "llama_model_get_vocab": _POINTER,
    "llama_get_memory": _POINTER,
    "llama_get_logits": ctypes.POINTER(ctypes.c_float),
    "llama_vocab_get_text": ctypes.c_char_p,
    "llama_model_n_params": ctypes.c_uint64,
    "llama_n_ctx": ctypes.c_uint32,
    "llama_n_batch": ctypes.c_uint32,
    "llama_n_ubatch": ctypes.c_uint32,
    "llama_vocab_get_add_bos": ctypes.c_bool,
}
_MODULES = {"xllamacpp": "xllamacpp/*.so", "llama_cpp": "llama_cpp/lib/libllama.*"}


def _find_library() -> tuple[str, Path]:
    for name, pattern in _MODULES.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        root = Path(str(module.__file__)).parent.parent
        for path in sorted(root.glob(pattern)):
            if hasattr(ctypes.CDLL(str(path)), "llama_model_load_from_file"):
                return name, path
    raise EvaluationError(
        "llama.cpp's library is not installed here",
        hint="pip install xllamacpp, or requirements: [xllamacpp] on the model",
    )


def find_fields(defaults: _Blob) -> dict[str, int]:
    """Offsets of the fields that are set, in bytes.

    llama.cpp has kept the order: sizes, threads, four kinds of which -1 is "as the model says"
    (rope scaling, pooling, attention, flash attention), floats, callback, the types of K and V.

    Raises:
        EvaluationError: the defaults do not show that order.
    """
    number = [defaults.integer(offset) for offset in range(0, 256, 4)]
    offsets = {"n_ctx": 0, "n_batch": 4, "n_ubatch": 8, "n_seq_max": 12}
    threads = next((i for i in range(4, 16) if number[i] == number[i + 1] > 1), 0)
    kinds = next((i for i in range(threads, 32) if number[i : i + 4] == [-1] * 4), 0)
    types = [
        i
        for i in range(kinds + 4, 40)
        if number[i : i + 2] == [1, 1] and number[i - 4 : i] == [0] * 4 == number[i + 2 : i + 6]
    ]
    sizes = number[0] > 0 and number[1] >= number[2] > 0 and number[3] == 1
    if not (sizes and threads and kinds and len(types) == 1):
        raise EvaluationError(
            "this build of llama.cpp has parameters in an order that evalguard does not know",
            hint="another version of the package may do; please report this one",
        )
    return {
        **offsets,
        "threads": 4 * threads,
        "threads_batch": 4 * threads + 4,
        "flash_attn": 4 * kinds + 12,
        "type_k": 4 * types[0],
        "type_v": 4 * types[0] + 4,
        "cb_eval": 4 * types[0] - 16,  # and its user data, both pointers
    }


class LlamaCpp(Runtime):
    """A model of a GGUF file, in one context that is cleared before every text."""

    def __init__(
        self,
        library: _Library,
        path: Path,
        options: Mapping[str, Any],
        texts: Mapping[str, Any],
    ) -> None:
        self._library, c = library, library.c
        self._model = self._context = None
        parameters = c.llama_model_default_params()
        library.logged()
        self._model = c.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise EvaluationError(f"{path} cannot be loaded: {_last_error(library.logged())}")
        log = library.logged()
        self._weight_types = sorted(set(_TYPE_LINE.findall(log)))
        self._shown = dict(_SHOWN_LINE.findall(log))
        model = _POINTER(self._model)
        self._vocab = _POINTER(c.llama_model_get_vocab(model))
        trained = int(c.llama_model_n_ctx_train(model))
        self.max_length = int(options["n_ctx"] or trained)
        self.vocabulary_size = int(c.llama_vocab_n_tokens(self._vocab))
        self.parameters = int(c.llama_model_n_params(model))
        self._effective: Mapping[str, Value] = {}
        self._open_context(options)
        self._tokenizer = None
        parts = (path.with_name(name) for name in gguf_parts(path.name))
        self.files = tuple(part for part in parts if part.exists())
        if texts["tokenizer"]:
            from evalguard.models.runtimes.tokenizer import FolderTokenizer

            self._tokenizer = FolderTokenizer(Path(str(texts["tokenizer"])))
            self.files = (*self.files, *self._tokenizer.files)
        self._add_bos = texts["add_bos_token"]
        self.dtype = _weight_type(c, model)
        if fallbacks := _metadata(c, model, _FALLBACKS_KEY, room=4096):
            self.caveats = (
                f"rows of some matrices are no multiple of their type's block, and have "
                f"another one: {fallbacks}",
            )
        self._set_special(texts["prefix_token_id"])

    def _set_special(self, prefix: int | None) -> None:
        c = self._library.c
        if self._tokenizer is not None:
            bos, eos = self._tokenizer.bos, self._tokenizer.eos
        else:
            bos, eos = int(c.llama_vocab_bos(self._vocab)), int(c.llama_vocab_eos(self._vocab))
        self.eot_token_id = eos if eos is not None and eos >= 0 else -1
        known = [
            token_id for token_id in (prefix, bos, eos) if token_id is not None and token_id >= 0
        ]
        if not known:
            raise EvaluationError(
                "the file names neither BOS nor EOS, so a text without context has no first token",
                hint="set model_args.prefix_token_id",
            )
        self.prefix_token_id = int(known[0])

    def _open_context(self, options: Mapping[str, Any]) -> None:
        c, library = self._library.c, self._library
        parameters = c.llama_context_default_params()
        at = find_fields(parameters)
        batch = int(options["n_batch"] or self.max_length)
        wanted = {
            "n_ctx": self.max_length,
            "n_batch": batch,
            "n_ubatch": min(int(options["n_ubatch"] or 512), batch),
        }
        for name, value in wanted.items():
            parameters.put(at[name], value)
        for name in ("threads", "threads_batch"):
            if options["threads"]:
                parameters.put(at[name], int(options["threads"]))
        parameters.put(at["type_k"], _KV_TYPES[options["type_k"]])
        parameters.put(at["type_v"], _KV_TYPES[options["type_v"]])
        parameters.put(at["flash_attn"], _FLASH[options["flash_attn"]])
        library.logged()
        self._context = c.llama_init_from_model(_POINTER(self._model), parameters)
        log = library.logged()
        if not self._context:
            raise EvaluationError(
                f"llama.cpp makes no context: {_last_error(log)}",
                hint="a V cache that is quantised needs flash_attn: on",
            )
        self._effective = self._read_back(wanted, options, log)

    def visit_activations(self, ids: Sequence[int], visit: Visit) -> None:
        """Read a text in one pass of a context of its own, node by node."""
        c, model = self._library.c, _POINTER(self._model)
        architecture = _metadata(c, model, "general.architecture")
        if architecture not in ARCHITECTURES:
            raise UsageError(
                f"the tensors of a GGUF file of '{architecture}' are not known as points",
                hint=f"known: {', '.join(ARCHITECTURES)}",
            )
        declare_functions(c)
        heads = int(c.llama_model_n_head(model)), int(c.llama_model_n_head_kv(model))
        scale = float(_metadata(c, model, _QUERY_SCALE_KEY) or 1.0)
        visitor = GraphVisitor(c, architecture, heads, scale, visit)
        parameters = c.llama_context_default_params()
        at = find_fields(parameters)
        effective = self._effective
        flash = _FLASH[str(effective["flash_attn"])]
        for name in ("n_ctx", "n_batch", "n_ubatch"):
            parameters.put(at[name], len(ids))
        for name in ("threads", "threads_batch"):
            parameters.put(at[name], int(str(effective["threads"])))
        for name in ("type_k", "type_v"):
            parameters.put(at[name], _KV_TYPES[str(effective[name])])
        parameters.put(at["flash_attn"], flash)
        parameters.put_pointer(at["cb_eval"], visitor.callback)
        context = c.llama_init_from_model(model, parameters)
        if not context:
            raise EvaluationError(
                f"llama.cpp makes no context: {_last_error(self._library.logged())}"
            )
        batch = c.llama_batch_init(len(ids), 0, 1)
        try:
            _fill(batch, ids, 0, 0)
            code = c.llama_decode(_POINTER(context), batch)
            visitor.finish()
        finally:
            c.llama_batch_free(batch)
            c.llama_free(_POINTER(context))
        if code != 0:
            raise EvaluationError(
                f"llama.cpp reads no {len(ids)} tokens (code {code}): "
                f"{_last_error(self._library.logged())}"
            )

    def _read_back(
        self, wanted: Mapping[str, int], options: Mapping[str, Any], log: str
    ) -> dict[str, Value]:
        """What the context has; sizes from its functions, types and attention from the log.

        Raises:
            EvaluationError: it is not what was asked for.
        """
        c, context = self._library.c, _POINTER(self._context)
        actual: dict[str, Value] = {
            name: int(getattr(c, f"llama_{name}")(context)) for name in wanted
        }
        actual["threads"] = int(c.llama_n_threads(context))
        types = re.findall(r"\b([KV]) \((\w+)\)", log)
        logged = {f"type_{side.lower()}": kind for side, kind in types}
        flash = re.search(r"flash_attn\s*=\s*(\w+)", log)
        logged |= {"flash_attn": _flash_word(flash[1])} if flash else {}
        for name in ("type_k", "type_v", "flash_attn"):
            asked = options[name]
            if name not in logged and asked != ("off" if name == "flash_attn" else "f16"):
                if not types and name.startswith("type"):
                    continue  # a recurrent model holds a state, not keys and values
                raise EvaluationError(f"llama.cpp does not tell what became of {name}={asked}")
            if logged.get(name, asked) != asked and asked != "auto":
                raise EvaluationError(f"{name} is {logged[name]} after loading, asked was {asked}")
        context_size = actual["n_ctx"]
        assert isinstance(context_size, int)
        if context_size < self.max_length or any(
            actual[name] != wanted[name] for name in ("n_batch", "n_ubatch")
        ):
            raise EvaluationError(f"llama.cpp has {actual}, asked was {dict(wanted)}")
        actual["n_ctx"] = self.max_length  # it rounds up; more is never read
        return {**actual, **{name: logged.get(name, options[name]) for name in _KV_OPTIONS}}

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the context has."""
        return self._effective

    def held_values(self) -> Sequence[HeldValue]:
        """What its log shows of the hyper-parameters that it computes with, in few digits."""
        query = _metadata(self._library.c, _POINTER(self._model), _QUERY_SCALE_KEY)
        return read_shown(self._shown, query_scale=float(query or 1.0))

    @property
    def computation(self) -> Mapping[str, Value]:
        """The types in which keys and values are kept, and all of the weights, as its log says."""
        kinds = dict.fromkeys(str(self._effective[name]) for name in ("type_k", "type_v"))
        types: dict[str, Value] = {"weight_types": [*self._weight_types]}
        return {"cache_dtype": [*kinds], **(types if self._weight_types else {})}

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids by the file's own tokenizer, or by the one that was given."""
        if special is None:
            special = self._add_bos
        if self._tokenizer is not None:
            return self._tokenizer.encode(text, special)
        c = self._library.c
        if special is None:
            special = bool(c.llama_vocab_get_add_bos(self._vocab))
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 8
        ids = (ctypes.c_int32 * room)()
        count = c.llama_tokenize(
            self._vocab, raw, len(raw), ids, room, ctypes.c_bool(special), ctypes.c_bool(True)
        )
        if count < 0:
            raise EvaluationError(
                f"the file's tokenizer cannot encode a text of {len(text)} letters"
            )
        return list(ids[:count])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        if self._tokenizer is not None:
            return self._tokenizer.decode(ids)
        return self._detokenize(ids, special=False)

    def decode_special(self, token: int) -> str:
        """How a special token is written."""
        if self._tokenizer is not None:
            return self._tokenizer.decode_special(token)
        return self._detokenize([token], special=True)

    def _detokenize(self, ids: Sequence[int], *, special: bool) -> str:
        c = self._library.c
        array = (ctypes.c_int32 * len(ids))(*ids)
        room = 32 * len(ids) + 32
        while True:
            text = ctypes.create_string_buffer(room)
            count = c.llama_detokenize(
                self._vocab, array, len(ids), text, room,
                ctypes.c_bool(not special), ctypes.c_bool(special),
            )  # fmt: skip
            if count >= 0:
                return text.raw[:count].decode("utf-8", "replace")
            room = -count

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Of the tokenizer that was given; the file's own writes its tokens in another way."""
        return {} if self._tokenizer is None else self._tokenizer.vocabulary

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits of one text; the context forgets what it read before."""
        c, context = self._library.c, _POINTER(self._context)
        c.llama_memory_clear(_POINTER(c.llama_get_memory(context)), ctypes.c_bool(True))
        most = int(c.llama_n_batch(context))
        rows: list[Logits] = []
        for start in range(0, len(ids), most):
            part = ids[start : start + most]
            batch = c.llama_batch_init(len(part), 0, 1)
            try:
                wanted = _fill(batch, part, start, first)
                if (code := c.llama_decode(context, batch)) != 0:
                    raise EvaluationError(
                        f"llama.cpp reads no {len(part)} tokens (code {code}): "
                        f"{_last_error(self._library.logged())}"
                    )
            finally:
                c.llama_batch_free(batch)
            if wanted:
                shape = (wanted, self.vocabulary_size)
                rows.append(np.ctypeslib.as_array(c.llama_get_logits(context), shape).copy())
        return np.concatenate(rows)

    def close(self) -> None:
        """Free context and model."""
        c = self._library.c
        if self._context:
            c.llama_free(_POINTER(self._context))
        if self._model:
            c.llama_model_free(_POINTER(self._model))
        self._context = self._model = None


_KV_OPTIONS = ("type_k", "type_v", "flash_attn")


def _fill(batch: _Batch, ids: Sequence[int], start: int, first: int) -> int:
    """Put tokens into a batch; return of how many logits are wanted."""
    batch.n_tokens = len(ids)
    wanted = 0
    for index, token in enumerate(ids):
        batch.token[index] = token
        batch.pos[index] = start + index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = int(start + index >= first)
        wanted += start + index >= first
    return wanted


def _flash_word(told: str) -> str:
    return {"1": "on", "0": "off", "enabled": "on", "disabled": "off", "-1": "auto"}.get(told, told)


_SHOWN_LINE = re.compile(r"print_info: (\w+) += (\S+)$", re.MULTILINE)
# What its log calls the hyper-parameters. 0 is none of a scale, and a window that reaches all.
_SHOWN = {
    "f_norm_rms_eps": "norm_eps", "f_norm_eps": "norm_eps", "f_attn_scale": "attention_scale",
    "f_logit_scale": "logit_scale", "n_swa": "attention_window", "freq_base_train": "rope_theta",
    "n_rot": "rope_dimensions", "n_layer": "layers", "n_embd": "hidden_size", "n_head": "heads",
    "n_head_kv": "key_value_heads", "n_embd_head_k": "head_size", "n_ff": "mlp_size",
    "n_vocab": "vocabulary", "n_ctx_train": "context",
}  # fmt: skip


def read_shown(shown: Mapping[str, str], *, query_scale: float = 1.0) -> list[HeldValue]:
    """Read the hyper-parameters that llama.cpp's log shows, by its names.

    Args:
        query_scale: part of the attention's scale that a conversion put into the weights.
    """
    held_values = []
    for key, name in _SHOWN.items():
        try:
            number = float(shown[key])
        except (KeyError, ValueError):  # an older or a newer library; a list, one for each layer
            continue
        if not number and name != "attention_window":
            continue
        whole = shown[key].isdigit()
        value: Value = (int(number) or ABSENT) if whole else number
        unit = 0.0 if whole else 10.0 ** int(Decimal(shown[key]).as_tuple().exponent)
        held = HeldValue(name=name, value=value, source=key, within=unit / 2)
        if name == "attention_scale":
            held = replace(held, value=number * query_scale, within=held.within * query_scale)
        held_values.append(held)
    return held_values


_TYPE_LINE = re.compile(r"- type +(\w+): +\d+ tensors")


def _weight_type(c: Any, model: Any) -> str:
    text = ctypes.create_string_buffer(256)
    c.llama_model_desc(model, text, 256)
    return text.value.decode("utf-8", "replace").rpartition(" ")[2].lower()


def _metadata(c: Any, model: Any, key: str, *, room: int = 256) -> str:
    text = ctypes.create_string_buffer(room)
    c.llama_model_meta_val_str(model, key.encode(), text, ctypes.c_size_t(room))
    return text.value.decode("utf-8", "replace")


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    failures = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return next(iter((failures or lines)[-1:]), "it says nothing")[:300]
