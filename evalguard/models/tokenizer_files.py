"""How the tokenizers of two models differ: their files, and whether they put BOS first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.models.load_failures import explain_load_failures
from evalguard.models.model_folders import checkpoint_folder
from evalguard.models.quiet_libraries import silence_libraries

if TYPE_CHECKING:
    from evalguard.core.settings import Value


# How the files begin that transformers and its tokenizers read, whatever the kind.
_FILE_PREFIXES = (
    "tokenizer", "tokenization", "vocab", "merges", "special_tokens", "added_tokens", "spiece",
    "sentencepiece", "chat_template", "additional_chat_templates",
)  # fmt: skip
_FILE_SUFFIXES = (".tiktoken", ".spm", ".bpe", ".model")
_PROBE_TEXTS = ("The quick brown fox", "1 + 1 = 2", " été\n")


def tokenizer_files(model_args: Mapping[str, Value]) -> dict[str, str]:
    """Digest by name of every file that the tokenizer of these model_args is read from.

    {} where they are not on this machine, or lie in the model's own file (gguf).
    """
    folder = tokenizer_folder(model_args)
    if folder is None or not folder.is_dir():
        return {}
    found = (file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(found)
        if _is_tokenizer_file(file.relative_to(folder))
    }


def load_tokenizer(model_args: Mapping[str, Value], *, trust_remote_code: bool) -> Any:
    """Load the tokenizer of these model_args as lm-eval does.

    Raises:
        EvaluationError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    options: dict[str, Any] = {
        "revision": str(model_args.get("revision") or "main"),
        "use_fast": model_args.get("use_fast_tokenizer", True),
        "trust_remote_code": trust_remote_code,
    }
    for name in ("add_bos_token", "subfolder"):
        if model_args.get(name) not in (None, ""):
            options[name] = model_args[name]
    if model_args.get("gguf_file") and not model_args.get("tokenizer"):
        options["gguf_file"] = model_args["gguf_file"]
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    with explain_load_failures("hf", model_args, {}), silence_libraries():
        return AutoTokenizer.from_pretrained(source, **options)


def puts_bos_first(model_args: Mapping[str, Value], *, trust_remote_code: bool) -> bool | None:
    """Whether a model's texts begin with BOS; None where that is not a plain yes or no.

    None, too, where saying so explicitly (``add_bos_token``) would give other token ids than the
    tokenizer gives by itself: such a tokenizer puts more than BOS around a text.

    Raises:
        EvaluationError: the tokenizer cannot be loaded.
    """
    trusted = {"trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(model_args, **trusted)
    bos = tokenizer.bos_token_id
    ids = _encode_probes(tokenizer, model_args.get("add_bos_token"))
    first = {bos is not None and one[:1] == [bos] for one in ids}
    if bos is None or len(first) != 1:
        return None
    said = first.pop()
    told = load_tokenizer({**model_args, "add_bos_token": said}, **trusted)
    return said if _encode_probes(told, said) == ids else None


def _encode_probes(tokenizer: Any, add_bos_token: Value) -> list[list[int]]:
    options = {} if add_bos_token is None else {"add_special_tokens": add_bos_token}
    return [list(tokenizer.encode(text, **options)) for text in _PROBE_TEXTS]


def tokenizer_folder(model_args: Mapping[str, Value]) -> Path | None:
    """Where the tokenizer of these model_args lies; None if it is not on this machine."""
    if model_args.get("gguf_file") and not model_args.get("tokenizer"):
        return None
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    folder = checkpoint_folder(source, str(model_args.get("revision") or "main"), subfolder)
    return None if folder is None else folder / subfolder


def _is_tokenizer_file(file: Path) -> bool:
    return file.parts[0].startswith(_FILE_PREFIXES) or (
        len(file.parts) == 1 and file.name.endswith(_FILE_SUFFIXES)
    )
