"""A tokenizer in a GGUF file: byte-level BPE is "gpt2", BPE over sentencepiece's blanks "llama"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # kinds of tokens in a GGUF file


def write_tokenizer(
    writer: Any, folder: Path, config: Mapping[str, Any], add_bos: bool | None
) -> None:
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = told["model"]
    if model.get("type") != "BPE":
        # The runtime takes the checkpoint's own tokenizer then (model_args: tokenizer).
        writer.add_tokenizer_model("no_vocab")
        return
    size = int(config["vocab_size"])
    added = {one["id"]: one for one in told.get("added_tokens", ())}
    texts = {number: text for text, number in model["vocab"].items()}
    texts |= {number: one["content"] for number, one in added.items()}
    tokens = [texts.get(number, f"[PAD{number}]") for number in range(size)]
    whole_bytes = bool(model.get("byte_fallback"))
    kinds = [
        _kind_of(number, text, added, texts, whole_bytes) for number, text in enumerate(tokens)
    ]
    writer.add_tokenizer_model("llama" if whole_bytes else "gpt2")
    if not whole_bytes:
        writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    if whole_bytes:
        writer.add_token_scores(_scores(tokens, model["merges"]))
        prepends = any(
            one.get("type") == "Prepend"
            for one in (told.get("normalizer") or {}).get("normalizers", ())
        )
        writer.add_add_space_prefix(prepends)
    else:
        writer.add_token_merges(merges)
    if config.get("bos_token_id") is not None:
        writer.add_bos_token_id(int(config["bos_token_id"]))
    eos = config.get("eos_token_id")
    if eos is not None:
        writer.add_eos_token_id(int(eos[0] if isinstance(eos, list) else eos))
    template = told.get("post_processor") or {}
    begins = [next(iter(one)) for one in template.get("single", ())][:1] == ["SpecialToken"]
    writer.add_add_bos_token(begins if add_bos is None else add_bos)
    chat = _chat_template(folder)
    if chat:
        writer.add_chat_template(chat)


def _chat_template(folder: Path) -> str:
    """The folder's chat template, which llama.cpp's server renders conversations by; "": none."""
    own, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    found = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    template = found.get("chat_template")
    return template if isinstance(template, str) else ""


def _kind_of(
    number: int,
    text: str,
    added: Mapping[int, Mapping[str, Any]],
    texts: Mapping[int, str],
    whole_bytes: bool,
) -> int:
    if number not in texts:
        return _USER
    if text == "<unk>":
        return _UNKNOWN
    if number in added:
        return _CONTROL if added[number].get("special") else _USER
    return _BYTE if whole_bytes and len(text) == 6 and text.startswith("<0x") else _NORMAL


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """llama.cpp joins the pair whose result has the highest score: earlier merges score higher."""
    order = {"".join(m.split(" ") if isinstance(m, str) else m): -float(rank)
             for rank, m in enumerate(merges)}  # fmt: skip
    lowest = -float(len(merges)) - 1.0
    return [order.get(token, lowest) for token in tokens]
