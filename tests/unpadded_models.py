"""Ports of a tiny GPT-2 that answer otherwise when a text is padded, and ports that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_models import save_tokenizer

_HEAD = """import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class PortConfig(GPT2Config):
    model_type = "gpt2_port"


class Port(GPT2LMHeadModel):
    config_class = PortConfig

"""
_FORWARD = """    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **more):
        {change}
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **more
        )
"""
_PADDED = """if position_ids is not None and attention_mask is not None and (
            attention_mask.dim() == 2 and not attention_mask.all()
        ):
            """
# What is wrong with each; on a text that is not padded all are GPT-2.
FAULTS = {
    "positions are counted from the padding": "position_ids = None",
    "the mask is ignored": "attention_mask = None",
    "the mask is read the other way round": _PADDED + "attention_mask = 1 - attention_mask",
    "positions are off by the number of pads": _PADDED
    + "position_ids = position_ids + (attention_mask == 0).sum(-1, keepdim=True)",
    "only the first column may be a beginning": _PADDED
    + "position_ids = position_ids.clamp(min=1)",
    "positions are wrong from the second token on": _PADDED
    + "position_ids = position_ids if input_ids.shape[1] > 1 else position_ids + 1",
    "half of the padding is seen": _PADDED
    + "attention_mask = attention_mask | (attention_mask.cumsum(-1).roll(-3, -1) > 0)",
}
HEALTHY = {
    "as GPT-2 has it": "pass",
    "positions from the mask": _PADDED
    + "position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]",
    "a mask of booleans": _PADDED + "attention_mask = attention_mask.bool()",
}


def save_gpt2(folder: Path, change: str = "", *, dtype: str = "float32", **config: Any) -> Path:
    """Write a tiny GPT-2 and its tokenizer; with ``change``, as a class of its own.

    Args:
        change: statements at the beginning of its forward.
    """
    import json

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    size = save_tokenizer(folder)
    torch.manual_seed(0)
    given = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96, "initializer_range": 0.3}
    made = GPT2Config(vocab_size=size, bos_token_id=0, eos_token_id=1, **{**given, **config})
    GPT2LMHeadModel(made).to(getattr(torch, dtype)).save_pretrained(folder)
    if change:
        (folder / "port.py").write_text(_HEAD + _FORWARD.format(change=change), encoding="utf-8")
        file = folder / "config.json"
        told = json.loads(file.read_text())
        told |= {
            "model_type": "gpt2_port",
            "architectures": ["Port"],
            "auto_map": {"AutoConfig": "port.PortConfig", "AutoModelForCausalLM": "port.Port"},
        }
        file.write_text(json.dumps(told))
    return folder
