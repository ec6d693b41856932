"""Tensors that are the same make another model with another configuration, which is said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_page import render_tensors

CONFIG: dict[str, Any] = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "num_experts_per_tok": 2,
    "sliding_window": None, "eos_token_id": [2, 7], "dtype": "float32", "hidden_act": "silu",
}  # fmt: skip
TENSORS = {"model.norm.weight": np.ones(8, dtype=np.float32)}


def save(folder: Path, config: dict[str, Any] | None) -> Path:
    folder.mkdir()
    save_file(TENSORS, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def differing(base: Path, candidate: Path) -> dict[str, tuple[Any, Any]]:
    report = compare_tensors(str(base), str(candidate), TensorOptions())
    assert report.exit_code == 0
    shown = " ".join(render_tensors(report, width=80, color=False).split())
    assert ("the configurations differ" in shown) == bool(report.configuration)
    return {one.name: (one.base, one.candidate) for one in report.configuration}


DIFFERENT = {
    "epsilon": ({"rms_norm_eps": 1e-5}, {"norm_eps": (1e-6, 1e-5)}),
    "rope": (
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        {"rope_theta": (1e6, 1e4)},
    ),
    "experts": ({"num_experts_per_tok": 1}, {"num_experts_per_tok": (2, 1)}),
    "window": ({"sliding_window": 4096}, {"attention_window": ("none", 4096)}),
    "activation": ({"hidden_act": "gelu"}, {"activation": ("silu", "gelu (erf)")}),
    "ends": ({"eos_token_id": 3}, {"eos_token_id": ([2, 7], 3)}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_a_config_says_otherwise_is_said(tmp_path: Path, what: str) -> None:
    change, said = DIFFERENT[what]
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", {**CONFIG, **change})) == said


EQUAL: dict[str, dict[str, Any]] = {
    "a copy": {},
    "another version": {"transformers_version": "5.0.0"},
    "another dtype": {"dtype": "bfloat16"},
    "for training": {"initializer_range": 0.01, "attention_dropout": 0.1},
    "its quantisation": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "one of several ends": {"eos_token_id": 2},
    "what one side alone says": {"head_dim": 64, "router_aux_loss_coef": 0.1},
}


@pytest.mark.parametrize("what", EQUAL)
def test_what_changes_no_computation_is_not(tmp_path: Path, what: str) -> None:
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", {**CONFIG, **EQUAL[what]})) == {}


def test_configs_of_two_kinds_are_compared_in_what_both_mean(tmp_path: Path) -> None:
    other = {**CONFIG, "model_type": "port", "rms_norm_eps": 1e-5, "num_experts_per_tok": 1}
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", other)) == {"norm_eps": (1e-6, 1e-5)}


def test_nothing_is_said_where_a_side_has_no_configuration(tmp_path: Path) -> None:
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", None)) == {}


def test_metadata_of_a_gguf_file_are_compared_with_a_config(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_tensor("output_norm.weight", TENSORS["model.norm.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = {**CONFIG, "sliding_window": 4096}
    assert differing(save(tmp_path / "base", config), file) == {
        "rope_theta": (1e6, 1e4), "attention_window": (4096, "none"),
    }  # fmt: skip


# Tokenizers

BLANKS: dict[str, Any] = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
TEXTS = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "▁a", "ab"]
TOKENIZER: dict[str, Any] = {
    "added_tokens": [
        {"id": at, "content": text, "special": True} for at, text in enumerate(TEXTS[:3])
    ],
    "normalizer": BLANKS,
    "pre_tokenizer": None,
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    },
    "model": {
        "type": "BPE", "byte_fallback": True, "merges": ["▁ a", "a b"],
        "vocab": {text: at for at, text in enumerate(TEXTS)},
    },
}  # fmt: skip
BYTES = {
    **TOKENIZER,
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "model": {**TOKENIZER["model"], "byte_fallback": False},
}
OPTIONS = {
    "bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>",
    "chat_template": "{{ messages }}\n",
}  # fmt: skip


def save_tokenizer(
    folder: Path,
    tokenizer: dict[str, Any] = TOKENIZER,
    options: dict[str, Any] = OPTIONS,
    ends: int | list[int] = 2,
) -> Path:
    save(folder, CONFIG)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def model_with(**change: Any) -> dict[str, Any]:
    return {**TOKENIZER, "model": {**TOKENIZER["model"], **change}}


SWAPPED = {text: at for at, text in enumerate([*TEXTS[:5], "b", "a", *TEXTS[7:]])}
FOLDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tokens": ({"tokenizer": model_with(vocab=SWAPPED)}, {"tokens": ("a", "b")}),
    "a token less": (
        {"tokenizer": model_with(vocab={text: at for at, text in enumerate(TEXTS[:-1])})},
        {"tokens": ("ab", "none")},
    ),
    "merges": ({"tokenizer": model_with(merges=["a b", "▁ a"])}, {"merges": ("▁ a", "a b")}),
    "a token that is no longer special": (
        {"tokenizer": {**TOKENIZER, "added_tokens": TOKENIZER["added_tokens"][:2]}},
        {"token_types": (3, 1)},
    ),
    "bytes of unknown letters": (
        {"tokenizer": model_with(byte_fallback=False)},
        {"byte_fallback": ("True", "False"), "tokenizer_kind": ("llama", "gpt2")},
    ),
    "BOS": (
        {"tokenizer": {**TOKENIZER, "post_processor": None}}, {"puts_bos_first": (True, False)}
    ),
    "BOS by an option": (
        {"options": {**OPTIONS, "add_bos_token": False}}, {"puts_bos_first": (True, False)}
    ),
    "EOS": ({"options": {**OPTIONS, "eos_token": "<s>"}}, {"eos_token": ("</s>", "<s>")}),
    "ends of texts": ({"ends": [3, 5]}, {"generation_eos_token_id": ([2], [3, 5])}),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLDERS)
def test_tokenizers_that_differ_are_said_to(tmp_path: Path, what: str) -> None:
    change, said = FOLDERS[what]
    base = save_tokenizer(tmp_path / "base")
    assert differing(base, save_tokenizer(tmp_path / "port", **change)) == said


@pytest.mark.parametrize(
    "options", [{**OPTIONS, "chat_template": "{{ x }}"}, {"eos_token": "</s>"}]
)
def test_a_chat_template_that_is_another_or_lost_is_said_and_not_quoted(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    base = save_tokenizer(tmp_path / "base")
    ((name, values),) = differing(base, save_tokenizer(tmp_path / "port", options=options)).items()
    assert (name, "messages" in str(values)) == ("chat_template", False)
    assert values[0].startswith("14 characters #")


def reordered(value: Any) -> Any:
    """The same JSON, written in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(one) for one in value] if isinstance(value, list) else value


SAME_FOLDERS: dict[str, dict[str, Any]] = {
    "a copy": {},
    "in another order": {"tokenizer": reordered(TOKENIZER)},
    "merges as pairs": {"tokenizer": model_with(merges=[["▁", "a"], ["a", "b"]])},
    "keys of a later version": {"tokenizer": model_with(ignore_merges=False, dropout=None)},
    "one of several ends": {"ends": [2, 7]},
    "other notes": {"options": {**OPTIONS, "model_max_length": 77, "tokenizer_class": "X"}},
}


@pytest.mark.parametrize("what", SAME_FOLDERS)
def test_one_tokenizer_written_otherwise_is_no_difference(tmp_path: Path, what: str) -> None:
    base = save_tokenizer(tmp_path / "base")
    assert differing(base, save_tokenizer(tmp_path / "port", **SAME_FOLDERS[what])) == {}


def test_a_template_in_a_file_of_its_own_is_the_same(tmp_path: Path) -> None:
    base, port = save_tokenizer(tmp_path / "base"), tmp_path / "port"
    save_tokenizer(port, options={k: v for k, v in OPTIONS.items() if k != "chat_template"})
    (port / "chat_template.jinja").write_text("{{ messages }}")
    assert differing(base, port) == {}


METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [*TEXTS, "[PAD9]"],
    "tokenizer.ggml.scores": [0.0] * 5 + [-1.0, -2.0, -3.0, -4.0, -5.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 5],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ messages }}",
}


def save_gguf(file: Path, **change: Any) -> Path:
    """Write the metadata above, changed by the ends of their names; None leaves one out."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("output_norm.weight", TENSORS["model.norm.weight"])
    adders = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string,
              list: writer.add_array}  # fmt: skip
    for name, value in METADATA.items():
        held = change.pop(name.rpartition(".")[2], value)
        if held is not None:
            adders[type(held)](name, held)
    for name, value in change.items():
        adders[type(value)](f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


TYPES = METADATA["tokenizer.ggml.token_type"]
PORTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as the converter writes it": ({}, {}),
    "no flag, as llama.cpp takes it": ({"add_bos_token": None}, {}),
    "blanks in place of sentencepiece's": (
        {"tokens": [text.replace("▁", " ") for text in TEXTS]}, {}
    ),
    "tokens exchanged": (
        {"tokens": [*TEXTS[:5], "b", "a", *TEXTS[7:]]}, {"tokens": ("a", "b")}
    ),
    "tokens cut off": (
        {"tokens": TEXTS[:-1], "scores": [0.0] * 8, "token_type": TYPES[:8]},
        {"tokens": ("ab", "none")},
    ),
    "no BOS": ({"add_bos_token": False}, {"puts_bos_first": (True, False)}),
    "EOS added": ({"add_eos_token": True}, {"puts_eos_last": (False, True)}),
    "no blank before a text": ({"add_space_prefix": False}, {"puts_blank_first": (True, False)}),
    "another end": ({"eos_token_id": 1}, {"eos_token": ("</s>", "<s>")}),
    "an end that is text": (
        {"token_type": [*TYPES[:2], 1, *TYPES[3:]]}, {"token_types": (3, 1)}
    ),
    "another tokenizer": (
        {"model": "gpt2", "add_space_prefix": True}, {"tokenizer_kind": ("llama", "gpt2")}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PORTS)
def test_a_gguf_files_tokenizer_is_compared_with_a_folders(tmp_path: Path, what: str) -> None:
    change, said = PORTS[what]
    base = save_tokenizer(tmp_path / "base")
    assert differing(base, save_gguf(tmp_path / "a.gguf", **change)) == said


def test_a_gguf_file_without_its_template_is_said_to_have_none(tmp_path: Path) -> None:
    base = save_tokenizer(tmp_path / "base")
    said = differing(base, save_gguf(tmp_path / "a.gguf", chat_template=None))
    assert [values[1] for values in said.values()] == ["none"]


BYTE_LEVEL = {"model": "gpt2", "merges": ["▁ a", "a b"], "scores": None, "add_bos_token": True}
BYTE_PORTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as the converter writes it": ({"pre": "gpt-2"}, {}),
    "cut as nobody says": ({}, {"pre_tokenizer": ("by its file", "default")}),
    "merges in another order": (
        {"pre": "gpt-2", "merges": ["a b", "▁ a"]}, {"merges": ("▁ a", "a b")}
    ),
    "no flag for BOS": ({"pre": "gpt-2", "add_bos_token": None}, {"puts_bos_first": (True, False)}),
}  # fmt: skip


@pytest.mark.parametrize("what", BYTE_PORTS)
def test_byte_level_merges_are_compared_as_well(tmp_path: Path, what: str) -> None:
    change, said = BYTE_PORTS[what]
    base = save_tokenizer(tmp_path / "base", BYTES)
    assert differing(base, save_gguf(tmp_path / "a.gguf", **{**BYTE_LEVEL, **change})) == said


DIGEST = hashlib.sha256(b"{{ messages }}").hexdigest()[:16]
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a copy": ({}, {}),
    "tokens": ({"tokens": [*TEXTS, "[PAD8]"]}, {"tokens": ("[PAD9]", "[PAD8]")}),
    "scores": ({"scores": [0.0] * 10}, {"token_scores": (-1.0, 0.0)}),
    "types": ({"token_type": [*TYPES[:-1], 1]}, {"token_types": (5, 1)}),
    "template": (
        {"chat_template": None}, {"chat_template": (f"14 characters #{DIGEST}", "none")}
    ),
    "BOS": ({"bos_token_id": 2}, {"bos_token": ("<s>", "</s>")}),
}  # fmt: skip


@pytest.mark.parametrize("what", PAIRS)
def test_two_gguf_files_are_compared_in_their_tokenizers(tmp_path: Path, what: str) -> None:
    change, said = PAIRS[what]
    base = save_gguf(tmp_path / "base.gguf")
    assert differing(base, save_gguf(tmp_path / "a.gguf", **change)) == said


# Output heads that a config does not fit

WEIGHT = np.arange(24, dtype=np.float32).reshape(6, 4)
OWN = {"lm_head.weight": WEIGHT + 1}
HEADS: dict[str, tuple[bool, dict[str, Any], bool, dict[str, Any], dict[str, Any]]] = {
    "both tied": (True, {}, True, {}, {}),
    "both untied": (False, OWN, False, OWN, {}),
    "tied, and stored twice": (True, {}, True, {"lm_head.weight": WEIGHT}, {}),
    "tied, written out": (True, {}, False, {"lm_head.weight": WEIGHT}, {}),
    "untied, and none is stored": (
        True, {}, False, {},
        {"output_head": ("tied to the embedding", "untied, and none is stored")},
    ),
    "tied, and another one is stored": (
        False, OWN, True, OWN,
        {"output_head": ("stored", "tied, and another one is stored")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADS)
def test_a_head_that_its_config_does_not_fit_is_said(tmp_path: Path, what: str) -> None:
    tied, own, port_tied, ports, said = HEADS[what]
    paths = []
    for name, flag, more in (("base", tied, own), ("port", port_tied, ports)):
        config = {**CONFIG, "tie_word_embeddings": flag}
        folder = save(tmp_path / name, config)
        save_file({"model.embed_tokens.weight": WEIGHT, **more}, folder / "model.safetensors")
        paths.append(folder)
    assert differing(*paths) == said
