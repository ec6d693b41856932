"""transformers in an environment of its own, for a version that is not evalguard's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenizer import FolderTokenizer
from evalguard.models.runtimes.torch_runtime import (
    TorchRuntime,
    effective_dtype,
    take_common,
    weight_files,
)

if TYPE_CHECKING:
    import torch

_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
_DEFAULT_LENGTH = 2048  # lm-eval's


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a checkpoint with ``AutoModelForCausalLM``.

    model_args: ``pretrained``, ``dtype``, ``device``, ``max_length``, ``add_bos_token``,
    ``prefix_token_id``, ``tokenizer``, ``attn_implementation``, ``quantization_config``.
    """
    from transformers import AutoModelForCausalLM

    common = take_common(arguments)
    attention = arguments.take("attn_implementation")
    arguments.check_all_taken()
    options: dict[str, Any] = {"trust_remote_code": arguments.code_allowed}
    if attention is not None:
        options["attn_implementation"] = attention
    if not arguments.pickle_allowed:
        options["use_safetensors"] = True
    name = "dtype" if _takes_dtype() else "torch_dtype"
    model = AutoModelForCausalLM.from_pretrained(
        str(common["folder"]), **{name: common["dtype"] or "auto"}, **options
    ).to(common["device"])
    return _HFRuntime(model, common, arguments)


def _takes_dtype() -> bool:
    """Whether transformers calls the argument ``dtype``; before 4.56 it was ``torch_dtype``."""
    import transformers

    parts = transformers.__version__.split(".")
    return (int(parts[0]), int(parts[1])) >= (4, 56)


class _HFRuntime(TorchRuntime):
    def __init__(self, model: Any, common: Mapping[str, Any], arguments: RuntimeArguments) -> None:
        tokenizer = FolderTokenizer(common["tokenizer"], trust_remote_code=arguments.code_allowed)
        text = getattr(model.config, "text_config", None) or model.config
        length = next((getattr(text, n) for n in _LENGTHS if getattr(text, n, None)), 0)
        super().__init__(
            model,
            tokenizer,
            max_length=int(common["max_length"] or length or _DEFAULT_LENGTH),
            vocabulary_size=int(text.vocab_size),
            add_bos=common["add_bos"],
            prefix=common["prefix"],
        )
        self.files = (*weight_files(common["folder"]), *tokenizer.files)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(input_ids=ids, use_cache=False).logits
        return found

    @property
    def effective(self) -> Mapping[str, Value]:
        config = self.module.config
        attention = getattr(config, "_attn_implementation", None)
        return {**effective_dtype(self), "attn_implementation": attention}
