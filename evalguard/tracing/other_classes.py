"""A checkpoint of another class than a language model's: an encoder of text, sound or images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.scorer import ScoringPolicy
from evalguard.errors import UsageError
from evalguard.models.arguments import check_device, check_dtypes
from evalguard.models.failures import explain_load_failures
from evalguard.models.language_classes import find_class, find_other_class
from evalguard.models.loading import check_folders, default_device
from evalguard.models.process_state import silence_libraries
from evalguard.models.unloaded_models import read_effective_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evalguard.core.settings import Value


def loads_as_language_model(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> bool:
    """Whether lm-eval's classes hold what a checkpoint has: its config names one of them, or none.

    Raises:
        EvaluationError: there is no such config.
    """
    config = read_effective_config(model_args, overrides, trust_remote_code=trust_remote_code)
    return find_other_class(config) is None


def load_declared_class(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    device: str = "",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """Load a checkpoint as the class that its config names, in evaluation mode.

    Raises:
        UsageError: an argument that only language models have.
        EvaluationError: the weights are damaged, pickled, or not all there.
    """
    from evalguard.models.failures import RecordingLoader, refuse_random_weights

    taken = {"pretrained", "revision", "subfolder", "dtype", "attn_implementation", "device"}
    for name, value in model_args.items():
        if name not in taken | {"tokenizer", "add_bos_token", "max_length"} and value is not None:
            raise UsageError(
                f"model_args.{name} is of language models, and this checkpoint is another model's",
                target=f"model_args.{name}",
            )
    arguments = dict(model_args)
    check_folders(arguments, allow_pickle)
    check_dtypes(arguments)
    config = read_effective_config(model_args, overrides, trust_remote_code=trust_remote_code)
    kind = find_class(next(iter(config.architectures)))
    options = {
        name: arguments[name]
        for name in ("revision", "subfolder", "attn_implementation")
        if arguments.get(name) is not None
    }
    wanted = str(arguments.get("device") or default_device(ScoringPolicy(device=device)))
    check_device(wanted)
    pretrained = str(arguments["pretrained"])
    reports: list[dict[str, Any]] = []
    loader = RecordingLoader(kind, reports)
    with explain_load_failures("hf", model_args, overrides), silence_libraries():
        model: PreTrainedModel = loader.from_pretrained(
            pretrained,
            config=config,
            dtype=arguments.get("dtype") or "auto",
            use_safetensors=None if allow_pickle else True,
            **options,
        )
    for report in reports:
        refuse_random_weights(pretrained, report)
    return model.to(wanted).eval()
