"""Which checkpoints are language models: by the class that their config names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalguard.errors import UsageError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def refuse_other_class(pretrained: str, config: PretrainedConfig) -> None:
    """Refuse a checkpoint that no class of lm-eval's loads, or one that reads no texts.

    Raises:
        UsageError: saying what it is.
    """
    kind = find_other_class(config)
    if kind is None or (config.model_type in _language_models()[0] and _reads_texts(kind)):
        return  # a language model's files without its head, maybe
    raise UsageError(
        f"{pretrained} is a {kind.__name__}, no language model: no task can be asked of it",
        hint="evalguard dump writes what one puts out, and compare takes two such folders; "
        "evalguard trace compares what flows through two of them, evalguard tensors their weights; "
        "of one that reads images and texts try model: hf-multimodal",
        target="model_args.pretrained",
    )


def _language_models() -> tuple[set[str], set[str]]:
    """Names of the model types, and of the classes, that lm-eval loads."""
    from transformers.models.auto import modeling_auto as auto

    tables = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    )  # fmt: skip
    return {kind for table in tables for kind in table}, {
        name for table in tables for name in table.values()
    }


def find_other_class(config: PretrainedConfig) -> Any:
    """The class of transformers that a config names, where it is none of a language model."""
    declared = next(iter(getattr(config, "architectures", None) or ()), "")
    known = not declared or declared in _language_models()[1]
    return None if known else find_class(declared)


def _reads_texts(kind: Any) -> bool:
    return getattr(kind, "main_input_name", "input_ids") == "input_ids"


def find_class(name: str) -> Any:
    """A class of transformers; None where it has none of that name."""
    import transformers

    return getattr(transformers, name, None)
