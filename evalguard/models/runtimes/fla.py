"""RWKV-7 by flash-linear-attention: its kernels on a GPU, stand-ins of ours on a CPU."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenizer import open_tokenizer
from evalguard.models.runtimes.torch_runtime import TorchRuntime, effective_dtype, take_common

if TYPE_CHECKING:
    import torch

_PREFILLS = ("auto", "chunk", "recurrent")
_STATE_LAYOUTS = ("kv", "vk")
_STAND_INS = ("rwkv7",)  # model types whose kernels fla_kernels has
_LONGEST = 4096  # a recurrent model reads any length; windows of whole texts need one


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a checkpoint folder of flash-linear-attention.

    model_args: ``pretrained``, ``dtype``, ``device``, ``max_length``, ``add_bos_token``,
    ``prefix_token_id``, ``tokenizer`` (a folder), ``prefill`` (auto: chunk from 64 tokens on, as
    fla has it; chunk; recurrent), ``fuse_norm`` (the checkpoint's, unless given), ``pad_to`` (texts
    are filled up on the left to a multiple of so many tokens, as in a batch), ``segment`` (a text
    is read in passes of so many tokens, the state handed over from one to the next), and
    ``state_layout`` (of the state that is handed over: kv, which fla reads, or vk, as rwkv-pip
    keeps it).

    Raises:
        UsageError: a model that has no stand-ins, on a CPU.
    """
    common = take_common(arguments)
    prefill = arguments.choose("prefill", _PREFILLS, "auto")
    fuse_norm = arguments.take_flag("fuse_norm")
    pad_to = arguments.take_whole("pad_to", 1)
    segment = arguments.take_whole("segment")
    state_layout = arguments.choose("state_layout", _STATE_LAYOUTS, "kv")
    arguments.check_all_taken()
    if state_layout != "kv" and segment is None:
        raise UsageError(
            "model_args.state_layout: no state is handed over without model_args.segment",
            target="model_args.state_layout",
        )

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
        raise UsageError(
            f"model_args.prefill is of rwkv7; this is {config.model_type}",
            target="model_args.prefill",
        )
    if fuse_norm is not None:
        config.fuse_norm = fuse_norm
    if config.model_type == "rwkv7":
        choose_kernels(prefill, stand_ins=on_cpu)
    model = AutoModelForCausalLM.from_pretrained(
        str(common["folder"]),
        config=config,
        dtype=common["dtype"] or "auto",
        use_safetensors=None if arguments.pickle_allowed else True,
    ).to(common["device"])
    reading = _Reading(prefill, pad_to, segment, state_layout)
    return _FLARuntime(model, common, arguments, reading)


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


@dataclass(frozen=True)
class _Reading:
    """How a text is read; see ``load``."""

    prefill: str
    pad_to: int
    segment: int | None
    state_layout: str


class _FLARuntime(TorchRuntime):
    def __init__(
        self,
        model: Any,
        common: Mapping[str, Any],
        arguments: RuntimeArguments,
        reading: _Reading,
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
        self.files = (Path(common["folder"]), *tokenizer.files)
        self._reading = reading
        version = importlib.metadata.version("flash-linear-attention")
        if self.device.startswith("cpu"):
            self.caveats = (
                f"flash-linear-attention {version} on a CPU: its Triton kernels are replaced by "
                "equivalents in plain torch",
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of one text, filled up on the left and read in segments where that was asked."""
        import torch

        missing = -ids.shape[1] % self._reading.pad_to
        ids = torch.cat([ids.new_zeros(1, missing), ids], dim=1)
        mask = (torch.arange(ids.shape[1], device=ids.device) >= missing).long()[None]
        blocks, state = [], None
        for part in torch.split(ids, self._reading.segment or ids.shape[1], dim=1):
            done = self.module(
                input_ids=part,
                attention_mask=mask[:, : part.shape[1]] if missing else None,
                past_key_values=state,
                use_cache=self._reading.segment is not None,
            )
            mask = mask[:, part.shape[1] :]
            blocks.append(done.logits)
            state = done.past_key_values
            if self._reading.state_layout == "vk":
                for layer in range(len(state)):
                    recurrent = state[layer]["recurrent_state"]
                    recurrent.copy_(recurrent.transpose(-1, -2).clone())
        logits = torch.cat(blocks, dim=1)[:, missing:]
        if logits.shape[1] != ids.shape[1] - missing:
            raise EvaluationError(f"fla gave {logits.shape[1]} rows for {ids.shape[1]} tokens")
        return logits

    def traced_module(self) -> Any:
        """The model itself, where texts are read as they are.

        Raises:
            UsageError: they are filled up, or read in segments.
        """
        if self._reading.pad_to != 1 or self._reading.segment is not None:
            raise UsageError(
                "a base of a trace reads texts in one pass and without padding",
                hint="leave out model_args.pad_to and model_args.segment",
            )
        return self.module

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the model has."""
        return {
            **effective_dtype(self),
            **asdict(self._reading),
            "fuse_norm": getattr(self.module.config, "fuse_norm", None),
        }
