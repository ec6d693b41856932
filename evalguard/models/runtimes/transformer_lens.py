"""TransformerLens: HookedTransformer (2.x, 3.x) and TransformerBridge (3.x, 4.x).

A HookedTransformer is built from a folder without the hub: the library's own conversion of the
configuration and of the weights, with all folding off, so that its weights are the checkpoint's.

Its attention keeps heads apart where a Hugging Face model has them side by side in one axis: values
are given in the latter's shape. Before (..., heads, head size), after (..., heads * head size).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value
from evalguard.core.trace_points import OUTPUT
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.arguments import check_attention, check_known
from evalguard.models.runtimes.runtime import Array, Runtime, RuntimeArguments, Visit
from evalguard.models.runtimes.tokenizer import FolderTokenizer
from evalguard.models.runtimes.torch_runtime import TorchRuntime, effective_dtype, take_common

if TYPE_CHECKING:
    import torch

# Hook (or module) and side in a block -> module and side in a layer. TransformerLens' norms have
# hook_normalized before their weight is multiplied in: the module's own output is taken.
_BLOCK = {
    "ln1:in": "input_layernorm:in",
    "ln1:out": "input_layernorm:out",
    "attn.hook_q:out": "self_attn.q_proj:out",
    "attn.hook_k:out": "self_attn.k_proj:out",
    "attn.hook_v:out": "self_attn.v_proj:out",
    "attn.hook_z:out": "self_attn.o_proj:in",
    "attn:out": "self_attn.o_proj:out",
    "mlp.hook_pre:out": "mlp.gate_proj:out",
    "mlp.hook_pre_linear:out": "mlp.up_proj:out",
    "mlp.hook_post:out": "mlp.down_proj:in",
    "mlp:out": "mlp.down_proj:out",
    "hook_resid_post:out": ":out",
}
_LLAMA = {
    **_BLOCK,
    "ln2:in": "post_attention_layernorm:in",
    "ln2:out": "post_attention_layernorm:out",
}
_GEMMA2_POINTS = {
    **_BLOCK,
    "ln1_post:in": "post_attention_layernorm:in",
    "ln1_post:out": "post_attention_layernorm:out",
    "ln2:in": "pre_feedforward_layernorm:in",
    "ln2:out": "pre_feedforward_layernorm:out",
    "ln2_post:in": "post_feedforward_layernorm:in",
    "ln2_post:out": "post_feedforward_layernorm:out",
}
_WHOLE = {
    "hook_embed:out": "model.embed_tokens:out",
    "ln_final:in": "model.norm:in",
    "ln_final:out": "model.norm:out",
    "unembed:in": "lm_head:in",
    "unembed:out": "lm_head:out",
    OUTPUT: OUTPUT,
}
_TABLES = {"Gemma2ForCausalLM": _GEMMA2_POINTS, "LlamaForCausalLM": _LLAMA}
_PER_HEAD = ("attn.hook_q:out", "attn.hook_k:out", "attn.hook_v:out", "attn.hook_z:out")


def name_points(architecture: str, layers: int) -> dict[str, str]:
    """Points of the Hugging Face model by hook and side, "blocks.0.attn.hook_z:out".

    Raises:
        UsageError: nobody has said yet which hooks are which points of this architecture.
    """
    if architecture not in _TABLES:
        raise UsageError(
            f"the hooks of a HookedTransformer of {architecture} are not known as points",
            hint=f"known: {', '.join(_TABLES)}; or api: bridge, whose modules are the model's own",
        )
    points = dict(_WHOLE)
    for number in range(layers):
        for hook, point in _TABLES[architecture].items():
            joint = "" if point.startswith(":") else "."
            points[f"blocks.{number}.{hook}"] = f"model.layers.{number}{joint}{point}"
    return points


def lens_visit(config: Any, visit: Visit) -> Visit:
    """Return what sees hooks of a HookedTransformer and passes them on as points.

    Args:
        config: the model's own configuration.
    """
    names = name_points(str(config.original_architecture), int(config.n_layers))

    def pass_on(hook: str, value: Callable[[], Array]) -> Array | None:
        point = names.get(hook)
        if point is None:
            return None
        if hook.endswith(_PER_HEAD):
            return visit(point, lambda: join_heads(value()))
        return visit(point, value)

    return pass_on


def join_heads(value: Array) -> Array:
    """Return (..., heads, size) as (..., heads * size)."""
    return value.reshape(*value.shape[:-2], -1)


# Fields of HookedTransformerConfig that a conversion is known to get wrong: settings of a run.
_NUMBERS = ("attn_scale", "attn_scores_soft_cap", "output_logits_soft_cap", "eps", "rotary_base")
_FLAGS = ("use_attn_scale", "use_local_attn")
_PATTERN = ("local", "global")
# Checkpoints of Gemma 2 by query_pre_attn_scalar: the library has an attention scale for each.
_GEMMA2 = {256: "google/gemma-2-2b-it", 144: "google/gemma-2-27b-it"}
_ARCHITECTURES = {
    "Gemma2ForCausalLM": ("google/gemma-2-2b-it", "convert_gemma_weights"),
    "LlamaForCausalLM": ("meta-llama/Llama-2-7b-hf", "convert_llama_weights"),
    "GPT2LMHeadModel": ("gpt2", "convert_gpt2_weights"),
}


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a checkpoint folder.

    model_args: ``pretrained``, ``api`` (hooked, bridge; default: bridge where there is one),
    ``compatibility_mode`` (of a bridge), ``attn_implementation``, ``dtype``, ``device``,
    ``max_length``, ``add_bos_token``, ``prefix_token_id``, and of a HookedTransformer the fields
    of its configuration by name, e.g. ``attn_scale: 16``.

    Raises:
        UsageError: a field that is of the other class, or a value that it cannot have.
        EvaluationError: this version has no such class, or cannot convert the model.
    """
    _prepare_import()
    common = take_common(arguments)
    bridge = _bridge_class()
    api = arguments.choose("api", ("hooked", "bridge"), "bridge" if bridge else "hooked")
    overrides = _take_fields(arguments)
    compatibility = bool(arguments.take_flag("compatibility_mode"))
    attention = arguments.take("attn_implementation")
    arguments.check_all_taken()
    check_attention(attention)
    of_bridges = {"compatibility_mode": compatibility, "attn_implementation": attention}
    if api == "hooked" and any(of_bridges.values()):
        name = next(name for name, value in of_bridges.items() if value)
        raise UsageError(
            f"model_args.{name} is of a TransformerBridge: a HookedTransformer does not read it",
            hint="api: bridge, or leave it out",
            target=f"model_args.{name}",
        )
    beside: list[str] = []
    if api == "bridge":
        if overrides:
            raise UsageError(
                f"model_args.{next(iter(overrides))} is a field of HookedTransformer's "
                "configuration, which a bridge does not read",
                hint="api: hooked, or leave it out",
                target=f"model_args.{next(iter(overrides))}",
            )
        if bridge is None:
            raise _no_class("TransformerBridge", "3.0 and later")
        module = _boot(bridge, common, compatibility, attention)
    else:
        module = _build_hooked(common, overrides, beside)
    runtime = _LensRuntime(module, common, arguments, api, overrides, compatibility)
    if beside:
        names = ", ".join(beside)
        runtime.caveats = (f"{names} is the checkpoint's, by evalguard: TransformerLens has none",)
    return runtime


def _take_fields(arguments: RuntimeArguments) -> dict[str, Value]:
    """Take the fields of HookedTransformerConfig that are given.

    Raises:
        UsageError: one that it would take without a word, and fail on later.
    """
    fields: dict[str, Value] = {name: arguments.take_number(name) for name in _NUMBERS}
    fields |= {name: arguments.take_flag(name) for name in _FLAGS}
    fields["window_size"] = arguments.take_whole("window_size")
    fields["act_fn"] = arguments.take("act_fn")
    pattern = fields["attn_types"] = arguments.take("attn_types")
    check_pattern(pattern)
    return {name: value for name, value in fields.items() if value is not None}


def check_pattern(asked: Value) -> None:
    """Refuse a pattern of attention that is no list of its words.

    Raises:
        UsageError: naming them.
    """
    listed = isinstance(asked, list) and all(word in _PATTERN for word in asked)
    if asked is not None and not listed:
        raise UsageError(
            f"model_args.attn_types: {asked!r} is no list of {' and '.join(_PATTERN)}",
            target="model_args.attn_types",
        )


def _prepare_import() -> None:
    """TransformerLens 2.x reads a name that transformers 5 no longer has."""
    import transformers

    if not hasattr(transformers, "TRANSFORMERS_CACHE"):
        transformers.TRANSFORMERS_CACHE = None


def _bridge_class() -> Any:
    if importlib.util.find_spec("transformer_lens.model_bridge") is None:
        return None
    module = importlib.import_module("transformer_lens.model_bridge")
    return getattr(module, "TransformerBridge", None)


def _no_class(name: str, versions: str) -> EvaluationError:
    import importlib.metadata

    version = importlib.metadata.version("transformer-lens")
    return EvaluationError(
        f"transformer-lens {version} has no {name}",
        hint=f"{name} is in {versions}: requirements: [transformer-lens==VERSION]",
    )


def _boot(bridge: Any, common: Mapping[str, Any], compatibility: bool, attention: Any) -> Any:
    known = inspect.signature(bridge.boot_transformers).parameters
    options: dict[str, Any] = {"device": common["device"]}
    if common["dtype"] is not None and "dtype" in known:
        options["dtype"] = common["dtype"]
    module = bridge.boot_transformers(str(common["folder"]), **options)
    if attention is not None:
        module.original_model.set_attn_implementation(attention)
    if compatibility:
        module.enable_compatibility_mode()
    return module


def _build_hooked(
    common: Mapping[str, Any], overrides: Mapping[str, Value], beside: list[str]
) -> Any:
    """Build it from the folder; ``beside`` gets what was set that the library has no number for."""
    import torch
    from transformers import AutoModelForCausalLM

    lens = importlib.import_module("transformer_lens")
    if importlib.util.find_spec("transformer_lens.loading_from_pretrained") is None:
        raise _no_class("HookedTransformer", "3.x and earlier")
    loading = importlib.import_module("transformer_lens.loading_from_pretrained")
    folder = Path(common["folder"])
    stored_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = (stored_config.get("architectures") or ["none"])[0]
    if architecture not in _ARCHITECTURES:
        raise UsageError(
            f"no HookedTransformer of {architecture} from a folder here",
            hint=f"one of: {', '.join(_ARCHITECTURES)}; or api: bridge",
        )
    like, converter = _ARCHITECTURES[architecture]
    dtype = common["dtype"] or torch.float32
    original = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=dtype, attn_implementation="eager"
    )
    scalar = getattr(original.config, "query_pre_attn_scalar", None)
    fields = loading.convert_hf_model_config(_GEMMA2.get(scalar, like) if scalar else like)
    fields |= _sizes(stored_config, original.config)
    # The library's own number is what is compared; of a checkpoint that it does not know, or has
    # none for, it is the checkpoint's.
    if scalar and (scalar not in _GEMMA2 or fields.get("attn_scale", -1.0) in (None, -1.0)):
        fields["attn_scale"] = math.sqrt(scalar)
        if "attn_scale" not in overrides:
            beside.append("attn_scale")
    fields |= {"dtype": dtype, "device": common["device"], "tokenizer_name": None, **overrides}
    _check_activation(overrides.get("act_fn"))
    pattern = overrides.get("attn_types")
    if isinstance(pattern, list) and len(pattern) != original.config.num_hidden_layers:
        raise UsageError(
            f"model_args.attn_types has {len(pattern)} entries, and the model "
            f"{original.config.num_hidden_layers} layers",
            target="model_args.attn_types",
        )
    config = lens.HookedTransformerConfig.from_dict(fields)
    convert = getattr(loading, converter, None) or getattr(
        importlib.import_module("transformer_lens.pretrained.weight_conversions"), converter
    )
    module = lens.HookedTransformer(config, move_to_device=True)
    module.load_and_process_state_dict(
        convert(original, config),
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
        refactor_factored_attn_matrices=False,
    )
    return module.to(dtype)


def _check_activation(asked: Value) -> None:
    """The library takes any text, and fails once the first layer is built.

    Raises:
        UsageError: it has no such function.
    """
    module = "transformer_lens.utilities.activation_functions"
    if asked is None or importlib.util.find_spec(module) is None:
        return
    known = getattr(importlib.import_module(module), "SUPPORTED_ACTIVATIONS", None)
    if known:
        check_known("act_fn", asked, sorted(known))


def _sizes(told: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """What the folder says of sizes, under TransformerLens' names."""
    heads = int(config.num_attention_heads)
    head = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    groups = getattr(config, "num_key_value_heads", None)
    rope = getattr(config, "rope_parameters", None) or told.get("rope_parameters") or told
    sizes: dict[str, Any] = {
        "d_model": int(config.hidden_size),
        "d_head": head,
        "n_heads": heads,
        "n_layers": int(config.num_hidden_layers),
        "n_ctx": int(config.max_position_embeddings),
        "d_vocab": int(config.vocab_size),
        "d_vocab_out": int(config.vocab_size),
        "d_mlp": int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
        "original_architecture": told["architectures"][0],
    }
    if groups is not None:
        sizes["n_key_value_heads"] = int(groups)
    if hasattr(config, "rms_norm_eps"):
        sizes["eps"] = float(config.rms_norm_eps)
        sizes["rotary_dim"] = head
        sizes["rotary_base"] = float(_rope_theta(rope))
    if hasattr(config, "sliding_window") and "layer_types" in told:
        sizes["window_size"] = config.sliding_window
    layers = int(config.num_hidden_layers)
    caps = {
        "attn_scores_soft_cap": "attn_logit_softcapping",
        "output_logits_soft_cap": "final_logit_softcapping",
    }
    sizes |= {ours: float(told[name] or -1.0) for ours, name in caps.items() if name in told}
    if "Gemma2" in told["architectures"][0]:
        # The library's own pattern, repeated: whether it fits the checkpoint is what is compared.
        sizes["attn_types"] = (["global", "local"] * layers)[:layers]
    return sizes


def _rope_theta(rope: Mapping[str, Any]) -> float:
    if "rope_theta" in rope:
        return float(rope["rope_theta"])
    nested = [v for v in rope.values() if isinstance(v, Mapping) and "rope_theta" in v]
    return float(nested[0]["rope_theta"]) if nested else 1e4


class _LensRuntime(TorchRuntime):
    def __init__(
        self,
        module: Any,
        common: Mapping[str, Any],
        arguments: RuntimeArguments,
        api: str,
        overrides: Mapping[str, Value],
        compatibility: bool,
    ) -> None:
        tokenizer = FolderTokenizer(common["tokenizer"], trust_remote_code=arguments.code_allowed)
        super().__init__(
            module,
            tokenizer,
            max_length=int(common["max_length"] or module.cfg.n_ctx),
            vocabulary_size=int(module.cfg.d_vocab_out if api == "hooked" else module.cfg.d_vocab),
            add_bos=common["add_bos"],
            prefix=common["prefix"],
        )
        self._api, self._compatibility = api, compatibility
        self._overrides = overrides
        self.files = (common["folder"], *tokenizer.files)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.module(ids, return_type="logits")
        return logits

    def visit_activations(self, ids: Sequence[int], visit: Visit) -> None:
        """Read a text; the points of a HookedTransformer are those that its hooks stand for."""
        if self._api == "hooked":
            visit = lens_visit(self.module.cfg, visit)
        super().visit_activations(ids, visit)

    def point_names(self) -> Mapping[str, str]:
        """Of a bridge: the modules that it stands in for, by their own names."""
        if self._api == "hooked":
            return super().point_names()
        paths = {
            id(submodule): path for path, submodule in reversed(list(self.module.named_modules()))
        }
        names: dict[str, str] = {}
        for path, module in self.module.original_model.named_modules():
            name = path.replace("._original_component", "")
            if name and "hook_" not in name and id(module) in paths:
                names.setdefault(name, paths[id(module)])
        return {path: name for name, path in names.items()}

    @property
    def effective(self) -> Mapping[str, Value]:
        shown = {name: getattr(self.module.cfg, name, None) for name in self._overrides}
        return {
            **effective_dtype(self),
            "api": self._api,
            "compatibility_mode": self._compatibility,
            **shown,
        }
