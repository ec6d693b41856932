"""What a model's tokenizer says before the model is loaded, read as the model will read it.

A server's is the other side's (``engine/sources.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalguard.conversion.planning import plan_conversion
from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.engine.loading.foreign_code import brings_code
from evalguard.engine.loading.own_environment import is_runtime, shares_prefixes
from evalguard.gguf_table import read_gguf_metadata
from evalguard.models.runtimes.graphs import find_graph
from evalguard.models.runtimes.llama_cpp import find_model_file
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.runtimes.rwkv import find_world_folder
from evalguard.models.runtimes.tokenizer import TextEncoder, TokenizedTexts, open_tokenizer
from evalguard.models.tokenizers import entries_digest
from evalguard.models.unloaded_models import load_tokenizer

Encode = Callable[[Sequence[Request]], list[tuple[int, ...]]]
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_PLAIN, _CONTROL = (1, 4), 3  # numbers of llama.cpp's types of a token: normal, user-defined
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerAhead:
    """A tokenizer without its model.

    Attributes:
        digest, size: of the vocabulary, as ``ModelDescription`` has them; "" where the loaded model
            shows none.
        pieces: what each token id stands for, as tokenizers write it; "" for one that no text is
            written with, None for a byte or where that is not known.
        encode: token ids of requests, as the model will give them; None where only it can.
    """

    digest: str = ""
    size: int = 0
    pieces: Mapping[int, str | None]
    encode: Encode | None = None


def read_tokenizer(variant: Variant, policy: ScoringPolicy) -> TokenizerAhead | None:
    """Read a model's tokenizer; None where that takes the model, or more than this environment.

    An environment of its own has other versions of what reads tokenizers, and code of others does
    not run here.
    """
    plan = plan_conversion(variant)
    if variant.environment is not None or variant.build is not None or variant.serve is not None:
        return None
    if "pretrained" not in plan.model_args or brings_code(variant, plan):
        return None
    try:
        if is_runtime(variant):
            return _of_runtime(variant, plan.model_args, policy)
        return _of_transformers(plan.model_args) if shares_prefixes(variant) else None
    except Exception:  # noqa: BLE001 - of many libraries; loading the model says what is wrong
        return None


def _of_transformers(model_args: Mapping[str, Value]) -> TokenizerAhead | None:
    if model_args.get("gguf_file"):
        return None
    tokenizer = load_tokenizer(model_args, trust_remote_code=False)
    if not any((tokenizer.pad_token, tokenizer.unk_token, tokenizer.eos_token)):
        return None  # lm-eval adds a token for padding to the loaded model's
    return _of_vocabulary(tokenizer.get_vocab(), tokenizer.all_special_ids)


def _of_vocabulary(
    vocabulary: Mapping[str, int], special: Collection[int] = (), encode: Encode | None = None
) -> TokenizerAhead:
    entries = sorted(vocabulary.items())
    return TokenizerAhead(
        digest=entries_digest(entries),
        size=len(entries),
        pieces={
            token: "" if token in special else None if _BYTE.fullmatch(piece) else piece
            for piece, token in entries
        },
        encode=encode,
    )


def _of_runtime(
    variant: Variant, model_args: Mapping[str, Value], policy: ScoringPolicy
) -> TokenizerAhead | None:
    arguments = RuntimeArguments(model_type=variant.model, given=model_args)
    path, named = Path(str(model_args["pretrained"])).expanduser(), model_args.get("tokenizer")
    if not path.exists():
        return None  # to be fetched first
    if named:
        folder = Path(str(named)).expanduser()
    elif variant.model == "llama_cpp":
        return _of_gguf(find_model_file(arguments))
    elif variant.model == "rwkv":
        folder = find_world_folder()
    else:
        graph = variant.model in ("onnx", "openvino")
        folder = find_graph(arguments)[0] if graph else path
    texts = TokenizedTexts(
        open_tokenizer(folder),
        add_bos=arguments.take_flag("add_bos_token"),
        prefix=arguments.take_whole("prefix_token_id", least=0),
    )
    encoder = TextEncoder(texts, policy.rolling_bos)
    return _of_vocabulary(
        texts.vocabulary, encode=lambda requests: [encoder.encode(request) for request in requests]
    )


def _of_gguf(file: Path) -> TokenizerAhead | None:
    """The file's own tokens: llama.cpp encodes, and gives no vocabulary to compare."""
    metadata = read_gguf_metadata(file, (_TOKENS, _TYPES))
    tokens, kinds = metadata.get(_TOKENS), metadata.get(_TYPES)
    if not isinstance(tokens, list) or not isinstance(kinds, list) or len(tokens) != len(kinds):
        return None
    return TokenizerAhead(
        pieces={
            at: str(token) if kind in _PLAIN else "" if kind == _CONTROL else None
            for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        }
    )
