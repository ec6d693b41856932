"""Small random models whose documents are sampled from themselves.

A model with random weights knows nothing, but it predicts best what it wrote itself: every change
of its computation costs likelihood, twice the change about four times as much. So drift of any
size can be planted by the size of a change, in architectures that no small trained model has.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASK = "sampled_words"
WORDS = 254  # and <s>, </s>
_SHORTEST, _LONGEST = 12, 28  # words in a document
_TARGET = 2  # words that are to be predicted
_SHARPNESS = 1.0  # weight of the last norm, counted from -1: logits scatter by 2.6

_TASK = """
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
metadata: {{version: 1.0}}
"""

_COMMON = {
    "vocab_size": WORDS + 2, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    # soft-caps, an attention scale of its own, sliding and full layers, norms before and after
    "gemma2": (
        "gemma2",
        {
            "head_dim": 12, "query_pre_attn_scalar": 16, "sliding_window": 8,
            "attn_logit_softcapping": 8.0, "final_logit_softcapping": 12.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
    ),
    # gated delta rule (chunks in pure torch) and full attention by turns
    "hybrid": (
        "qwen3_5_text",
        {
            "head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 12, "linear_value_head_dim": 12,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
}  # fmt: skip
# Those of which no benchmark but bisect_undeclared makes use.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba2": (
        "mamba2",
        {
            "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 12,
            "n_groups": 2, "chunk_size": 8,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_hidden_layers": 3}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "head_dim": 12, "num_hidden_layers": 3, "norm_topk_prob": True,
        },
    ),
    "phi3": ("phi3", {}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0, "logits_scaling": 0.8, "residual_multiplier": 0.7,
            "attention_multiplier": 0.4,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 24,
            "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
            "moe_intermediate_size": 32, "first_k_dense_replace": 2, "rope_interleave": False,
        },
    ),
}  # fmt: skip
_FINAL_NORMS = ("norm", "final_layer_norm", "ln_f", "norm_f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A model's folder, and the folder of the task over its own documents."""

    kind: str
    model: Path
    tasks: Path


def sampled(kind: str, folder: Path, *, documents: int, seed: int) -> Sampled:
    """Make a model of a kind of ``CONFIGS`` or ``OTHERS``, and let it write documents."""
    import torch

    torch.manual_seed(seed)
    model = _random_model(kind)
    place = Sampled(kind=kind, model=folder / kind, tasks=folder / f"{kind}-task")
    model.save_pretrained(place.model)
    _save_tokenizer(place.model)
    place.tasks.mkdir(parents=True)
    texts = _written_by(model, documents, seed)
    file = place.tasks / "documents.jsonl"
    file.write_text("".join(json.dumps(_document(text)) + "\n" for text in texts))
    (place.tasks / f"{TASK}.yaml").write_text(_TASK.format(task=TASK, file=json.dumps(str(file))))
    return place


def _random_model(kind: str) -> PreTrainedModel:
    """Weights large enough that what is predicted depends on all that was read.

    Norm weights are one number for a whole norm, which bfloat16 holds, so that a setting can name
    it; those of ``OTHERS`` scatter.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    name, values = {**CONFIGS, **OTHERS}[kind]
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**{**_COMMON, **values}))
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.ndim == 2 or "experts" in path:
                spread = 1.0 if "embed" in path else 1.3 * weight.shape[-1] ** -0.5
                weight.normal_(0.0, spread)
            elif path.endswith("norm.weight"):
                weight.fill_(weight.flatten()[0].item())
            if weight.ndim == 1 and kind in OTHERS:
                weight.add_(0.2 * torch.randn_like(weight))
        final = next(one for name in _FINAL_NORMS if (one := getattr(model.base_model, name, None)))
        # a norm's weight is counted from 0 or, in Gemma and Qwen3.5, from -1
        counted = type(model).__name__.startswith(("Gemma", "Qwen3_5"))
        final.weight.fill_(_SHARPNESS if counted else 1.0 + _SHARPNESS)
    model.eval()
    return model


def _written_by(model: PreTrainedModel, documents: int, seed: int) -> list[list[str]]:
    """Documents of many lengths, as the model writes them after <s>."""
    import torch

    torch.manual_seed(seed + 1)
    lengths = torch.randint(_SHORTEST, _LONGEST + 1, (documents,)).tolist()
    ids = torch.zeros((documents, 1), dtype=torch.long)
    past = None
    # transformers has renamed it in 5.24.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        for _ in range(_LONGEST):
            out = model(input_ids=ids[:, -1:], **{name: past}, use_cache=True)
            past, logits = out[name], out.logits[:, -1, :].float()
            logits[:, :2] = -torch.inf  # <s> and </s> are no words
            drawn = torch.multinomial(logits.softmax(-1), 1)
            ids = torch.cat([ids, drawn], dim=1)
    return [
        [_word(one) for one in row[1 : length + 1]]
        for row, length in zip(ids.tolist(), lengths, strict=True)
    ]


def _document(words: list[str]) -> dict[str, str]:
    return {"context": " ".join(words[:-_TARGET]), "target": " " + " ".join(words[-_TARGET:])}


def _word(token: int) -> str:
    return f"w{token}"


def _save_tokenizer(folder: Path) -> None:
    """Whole words, so that what was sampled is what is read."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {"<s>": 0, "</s>": 1, **{_word(token): token for token in range(2, WORDS + 2)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.save_pretrained(folder)
