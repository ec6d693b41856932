"""What a model is made of, known from its config: no weights are read and no memory is taken."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.errors import EvaluationError
from evalguard.models.arguments import (
    constructor_parameters,
)
from evalguard.models.config_overrides import apply_overrides, override_config
from evalguard.models.load_failures import explain_load_failures
from evalguard.models.quiet_libraries import silence_libraries

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from evalguard.core.settings import Value


# model_args of reading a config, with lm-eval's defaults
_CONFIG_LOCATION: Mapping[str, Value] = {"revision": "main", "gguf_file": None, "subfolder": ""}


def read_effective_config(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> PretrainedConfig:
    """Read a config as loading these model_args does, with all that is laid over it.

    Raises:
        SettingError: an override names nothing in the config.
        EvaluationError: there is no such config.
    """
    from transformers import AutoConfig

    pretrained = str(model_args["pretrained"])
    where: dict[str, Any] = {n: model_args.get(n) or value for n, value in _CONFIG_LOCATION.items()}
    with explain_load_failures("hf", model_args, overrides), silence_libraries():
        config = AutoConfig.from_pretrained(
            pretrained, trust_remote_code=trust_remote_code, **where
        )
        apply_overrides(config, overrides, pretrained, **where)
        override_config(config, config_model_args(config, model_args))
    return config


def config_model_args(
    config: PretrainedConfig, model_args: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the model_args that transformers takes for attributes of the config."""
    from evalguard.models.hf.model import LOADER_ARGUMENTS, GuardedHFLM

    known = constructor_parameters(GuardedHFLM).keys() | LOADER_ARGUMENTS
    return {n: v for n, v in model_args.items() if n not in known and hasattr(config, n)}


def build_empty_model(
    config: PretrainedConfig,
    model_args: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Make the modules that these model_args and this config lead to, on the meta device.

    The config is copied; the model's own says which attention implementation it resolves to.

    Raises:
        EvaluationError: the architecture cannot be made without its weights.
    """
    import torch

    asked = {n: v for n, v in model_args.items() if n == "attn_implementation" and v is not None}
    try:
        with torch.device("meta"), silence_libraries():
            made: PreTrainedModel = _auto_class(config, model_args).from_config(
                copy.deepcopy(config), trust_remote_code=trust_remote_code, **asked
            )
            return made
    except Exception as error:
        raise EvaluationError(
            f"the modules of {model_args['pretrained']} cannot be listed without its weights: "
            f"{' '.join(str(error).split())}",
        ) from error


def _auto_class(config: PretrainedConfig, model_args: Mapping[str, Value]) -> Any:
    """The auto class with which lm-eval loads a model of this type."""
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as WITH_ENCODER,
    )

    backend = model_args.get("backend") or "default"
    encoder = backend == "seq2seq" or (backend == "default" and config.model_type in WITH_ENCODER)
    return transformers.AutoModelForSeq2SeqLM if encoder else transformers.AutoModelForCausalLM
