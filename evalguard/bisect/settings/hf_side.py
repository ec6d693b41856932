"""A Hugging Face model as one side of settings that are derived, and whether they can be; the base
as what a candidate's modules are taken from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.conversion.planning import MODULE_SOURCE_KINDS, plan_conversion, read_module_source
from evalguard.core.settings import ENCODING_ARGS, LENGTH_ARGS, Value, Variant
from evalguard.engine.loading.foreign_code import brings_code
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import (
    CheckpointFiles,
    find_checkpoint_files,
    hub_snapshot,
    open_stored_tensors,
)
from evalguard.models.config_overrides import to_json_value
from evalguard.models.unloaded_models import build_empty_model, load_dtype, read_effective_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# model_args with which the weights that are computed with are not those of the checkpoint.
_OTHER_WEIGHTS = ("peft", "delta", "autogptq", "gptqmodel", "load_in_4bit", "load_in_8bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class HFSide:
    """One model: what it is loaded with, its config, its modules, its files.

    ``model`` has no weights (meta device); None where its modules cannot be listed. ``files`` is
    None where the weights lie in no checkpoint that can be read. ``why_no_...`` says why.
    """

    variant: Variant
    model_args: Mapping[str, Value]
    overrides: Mapping[str, Value]
    config: Any
    model: PreTrainedModel | None
    files: CheckpointFiles | None
    dtype: str
    why_no_model: str = ""
    why_no_files: str = ""

    @classmethod
    def of(cls, variant: Variant) -> HFSide:
        """Read a model's config and list its modules.

        Raises:
            EvaluationError: there is no such model.
            SettingError: one of its settings names nothing in its config.
        """
        wanted = plan_conversion(variant)
        trusted = {"trust_remote_code": variant.trust_remote_code}
        config = read_effective_config(wanted.model_args, wanted.config_overrides, **trusted)
        model, why_no_model, files, why_no_files = None, "", None, ""
        try:
            model = build_empty_model(config, wanted.model_args, **trusted)
        except EvaluationError as error:
            why_no_model = str(error)
        try:
            files = _checkpoint_files(wanted.model_args, variant.allow_pickle)
        except EvaluationError as error:
            why_no_files = str(error)
        with ExitStack() as stack:
            stored = {} if files is None else open_stored_tensors(files, stack)
            dtype = load_dtype(wanted.model_args, config, stored)
        return cls(
            variant=variant,
            model_args=wanted.model_args,
            overrides=wanted.config_overrides,
            config=config,
            model=model,
            files=files,
            dtype=dtype,
            why_no_model=why_no_model,
            why_no_files=why_no_files,
        )

    @property
    def checkpoint(self) -> str:
        """The name under which a ``weights:`` setting finds this model's weights."""
        return checkpoint_name(self.model_args)

    @property
    def quantisation(self) -> Value:
        """How its weights are quantised when it is loaded; None if they are not."""
        quantisation = to_json_value(getattr(self.config, "quantization_config", None))
        return quantisation or self.model_args.get("quantization_config")

    @property
    def other_weights(self) -> str:
        """The argument that changes weights as they are loaded, "" if there is none."""
        given = (name for name in _OTHER_WEIGHTS if self.model_args.get(name))
        return next(given, "")


def checkpoint_name(model_args: Mapping[str, Value]) -> str:
    """Name a model's checkpoint: its folder, hub id, or ``owner/name@revision``."""
    source = str(model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    revision = str(model_args.get("revision") or "main")
    folder = Path(source).expanduser()
    if folder.exists():
        return str(folder / subfolder)
    if subfolder:
        snapshot = hub_snapshot(source, revision, subfolder)
        return source if snapshot is None else str(snapshot / subfolder)
    return source if revision == "main" else f"{source}@{revision}"


def _checkpoint_files(model_args: Mapping[str, Value], allow_pickle: bool) -> CheckpointFiles:
    if model_args.get("gguf_file"):
        raise EvaluationError(f"the weights are in {model_args['gguf_file']}")
    return find_checkpoint_files(checkpoint_name(model_args), allow_pickle=allow_pickle)


def describe_module_source(base: Variant, candidate: Variant) -> Value:
    """The base as the value of a ``module:`` setting of a candidate.

    Raises:
        UsageError: its modules cannot be taken, or not into this candidate.
    """
    why = _why_not_taken(base, candidate)
    if why:
        raise UsageError(
            f"modules of '{base.name}' cannot be put into '{candidate.name}': {why}",
            hint="both have to be of model type hf, in evalguard's own environment",
        )
    wanted = plan_conversion(base)
    arguments = {
        name: value for name, value in wanted.model_args.items() if name not in _NOT_OF_MODULES
    }
    edits = {
        str(target): value
        for target, value in wanted.targets.values()
        if target.kind in MODULE_SOURCE_KINDS and target.kind != "model_args"
    }
    if edits or arguments.keys() - {"pretrained", "revision"}:
        source: Value = {"model_args": arguments, **({"settings": edits} if edits else {})}
    else:
        source = checkpoint_name(wanted.model_args)
    read_module_source(base.name, source)  # refused now, not after the models were scored
    return source


# Arguments that say how a model is asked, or that are the candidate's for all of its modules.
_NOT_OF_MODULES = (
    (ENCODING_ARGS - {"tokenizer", "use_fast_tokenizer"})
    | LENGTH_ARGS
    | {"dtype", "device", "attn_implementation", "batch_size", "max_batch_size", "add_bos_token"}
)


def _why_not_taken(base: Variant, candidate: Variant) -> str:
    for variant in (base, candidate):
        if variant.model not in HF_TYPES:
            return f"'{variant.name}' is of model type {variant.model}"
        if variant.environment is not None:
            return f"'{variant.name}' runs in an environment of its own"
    if base.build is not None:
        return f"'{base.name}' is made by a build recipe; name the folder that it makes"
    if base.trust_remote_code and not candidate.trust_remote_code:
        return "only the base may run code of its own (trust_remote_code)"
    odd = [
        name
        for name, (target, _) in plan_conversion(base).targets.items()
        if target.kind not in (*MODULE_SOURCE_KINDS, "generation")
    ]
    return f"setting '{odd[0]}' of the base cannot be taken along" if odd else ""


def note_mixed_code(base: Variant, candidate: Variant) -> tuple[str, ...]:
    """What is to be said where modules of a model run in one process with code of the other."""
    brings = [
        variant.name
        for variant in (base, candidate)
        if brings_code(variant, plan_conversion(variant))
    ]
    if not brings:
        return ()
    return (
        f"the candidate with modules of the base runs in one process with code that "
        f"{' and '.join(brings)} bring{'s' if len(brings) == 1 else ''}: what that code changes in "
        "the base's modules counts, and these scores are not kept for other runs",
    )
