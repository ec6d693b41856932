"""RWKV-7 by flash-linear-attention: its kernels on a GPU, stand-ins of ours on a CPU."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenizer import open_tokenizer
from evalguard.models.runtimes.torch_runtime import (
    TorchRuntime,
    effective_dtype,
    take_common,
    weight_files,
)

if TYPE_CHECKING:
    import torch

_PREFILLS = ("auto", "chunk", "recurrent")
_STAND_INS = ("rwkv7",)  # model types whose kernels fla_kernels has
_LONGEST = 4096  # a recurrent model reads any length; windows of whole texts need one


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a checkpoint folder of flash-linear-attention.

    model_args: ``pretrained``, ``dtype``, ``device``, ``max_length``, ``add_bos_token``,
    ``prefix_token_id``, ``tokenizer`` (a folder), ``prefill`` (auto: chunk from 64 tokens on, as
    fla has it; chunk; recurrent), ``fuse_norm`` (the checkpoint's, unless given), ``pad_to`` (texts
    are filled up on the left to a multiple of so many tokens, as in a batch).

    Raises:
        UsageError: a model that has no stand-ins, on a CPU.
    """
    common = take_common(arguments)
    prefill = arguments.choose("prefill", _PREFILLS, "auto")
    fuse_norm = arguments.take("fuse_norm")
    pad_to = int(arguments.take("pad_to", 1))
    arguments.check_all_taken()
    if pad_to < 1:
        raise UsageError(f"model_args.pad_to: {pad_to} is no number of tokens from 1 on")

    importlib.import_module("fla")  # registers its models with transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(str(common["folder"]))
    on_cpu = str(common["device"]).startswith("cpu")
    if on_cpu and config.model_type not in _STAND_INS:
        raise UsageError(
            f"flash-linear-attention's kernels for {config.model_type} need a GPU",
            hint=f"on a CPU there are stand-ins for {', '.join(_STAND_INS)}",
        )
    if prefill != "auto" and config.model_type != "rwkv7":
        raise UsageError(f"model_args.prefill is of rwkv7; this is {config.model_type}")
    if fuse_norm is not None:
        config.fuse_norm = bool(fuse_norm)
    if config.model_type == "rwkv7":
        choose_kernels(prefill, stand_ins=on_cpu)
    model = AutoModelForCausalLM.from_pretrained(
        str(common["folder"]),
        config=config,
        dtype=common["dtype"] or "auto",
        use_safetensors=None if arguments.pickle_allowed else True,
    ).to(common["device"])
    return _FLARuntime(model, common, arguments, prefill=prefill, pad_to=pad_to)


def choose_kernels(prefill: str, *, stand_ins: bool) -> None:
    """Put the chosen kernels in the place of those that fla's RWKV-7 calls, for this process.

    Args:
        prefill: which recurrence reads a text; see ``load``.
        stand_ins: whether all kernels are those in plain torch.
    """
    layer: Any = importlib.import_module("fla.layers.rwkv7")
    if stand_ins:
        from evalguard.models.runtimes import fla_kernels

        modeling: Any = importlib.import_module("fla.models.rwkv7.modeling_rwkv7")
        chunk, recurrent = fla_kernels.run_chunks, fla_kernels.run_recurrence
        layer.token_shift = modeling.token_shift = fla_kernels.shift_tokens
        layer.fused_addcmul_rwkv7 = fla_kernels.mix_tokens
        layer.fused_k_rwkv7 = fla_kernels.update_keys
        layer.gate_output_correction = fla_kernels.correct_and_gate
        layer.l2_norm = fla_kernels.normalize_heads
        layer.GroupNorm = fla_kernels.StandInGroupNorm
        modeling.LayerNorm = fla_kernels.StandInLayerNorm
    else:
        ops = importlib.import_module("fla.ops.rwkv7")
        chunk, recurrent = ops.chunk_rwkv7, ops.fused_recurrent_rwkv7

    # fla reads short texts by another kernel, which is given kk in place of a and b.
    def read_short(*, kk: torch.Tensor, a: torch.Tensor, **given: Any) -> Any:
        kernel = chunk if prefill == "chunk" else recurrent
        return kernel(a=-kk, b=kk * a, **given)

    def read_long(**given: Any) -> Any:
        if prefill != "recurrent":
            return chunk(**given)
        for name in ("safe_gate", "lower_bound", "chunk_size"):
            given.pop(name, None)
        return recurrent(**given)

    if stand_ins or prefill == "chunk":
        layer.fused_mul_recurrent_rwkv7 = read_short
    if stand_ins or prefill == "recurrent":
        layer.chunk_rwkv7 = read_long


class _FLARuntime(TorchRuntime):
    def __init__(
        self,
        model: Any,
        common: Mapping[str, Any],
        arguments: RuntimeArguments,
        *,
        prefill: str,
        pad_to: int,
    ) -> None:
        tokenizer = open_tokenizer(common["tokenizer"], trust_remote_code=arguments.code_allowed)
        super().__init__(
            model,
            tokenizer,
            max_length=int(common["max_length"] or _LONGEST),
            vocabulary_size=int(model.config.vocab_size),
            add_bos=common["add_bos"],
            prefix=common["prefix"],
        )
        self.files = (*weight_files(Path(common["folder"])), *tokenizer.files)
        self._prefill, self._pad_to = prefill, pad_to
        version = importlib.metadata.version("flash-linear-attention")
        if self.device.startswith("cpu"):
            self.caveats = (
                f"flash-linear-attention {version} on a CPU: its Triton kernels are replaced by "
                "equivalents in plain torch",
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of one text, filled up on the left where that was asked for."""
        import torch

        missing = -ids.shape[1] % self._pad_to
        given: dict[str, Any] = {"input_ids": ids}
        if missing:
            given["input_ids"] = torch.cat([ids.new_zeros(1, missing), ids], dim=1)
            given["attention_mask"] = (
                torch.arange(missing + ids.shape[1], device=ids.device) >= missing
            ).long()[None]
        found: torch.Tensor = self.module(**given, use_cache=False).logits[:, missing:]
        if found.shape[1] != ids.shape[1]:
            raise EvaluationError(f"fla gave {found.shape[1]} rows for {ids.shape[1]} tokens")
        return found

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the model has."""
        return {
            **effective_dtype(self),
            "prefill": self._prefill,
            "fuse_norm": getattr(self.module.config, "fuse_norm", None),
            "pad_to": self._pad_to,
        }
