"""The two sides of a trace: torch models with their settings applied, or activations of others."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.conversion.edits import apply
from evalguard.conversion.planning import plan_conversion
from evalguard.conversion.readback import check_environment, read_edits
from evalguard.conversion.taken_parts import take_weights
from evalguard.core.compare_report import RunIdentity
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import ModelDescription, PaddingEffect, Request, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.core.trace_points import ModelInputs, RecordedActivations, token_inputs
from evalguard.core.trace_record import Trace
from evalguard.engine.loading.edited_model import tensor_reader
from evalguard.engine.loading.known_models import LoadPlan
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.loading.own_environment import is_runtime
from evalguard.engine.run_identities import identify_model
from evalguard.engine.sources import DumpSource, ModelSource, Source
from evalguard.errors import EvaluationError, SettingError, UsageError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.unloaded_models import load_tokenizer
from evalguard.tracing.measure.activation_spool import SpooledActivations
from evalguard.tracing.measure.passes import ReportStep
from evalguard.tracing.other_classes import load_declared_class, loads_as_language_model
from evalguard.worker.outlines import TracedScorer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSide:
    """One side of a trace, loaded.

    Attributes:
        module: of a torch model in this process; None: activations are recorded, or were.
        record: of any other side: its activations for inputs, in their order.
        trace: of a base in a worker: traces recorded activations with itself as the base.
        recorded: activations that are there already: in files, or of a model that was closed.
        held: reads the hyper-parameters, as far as it shows them.
        encode: a request's token ids, and whether they were cut to the context; None where it
            reads no text, or cannot be asked.
        max_length: tokens that it may read; 0 where unknown.
        vocabulary: digest of it; "" where unknown.
        tokenizer: the library's own, None where it is not at hand.
        render_chat: its chat template; None where it has none.
        said: settings, arguments and build inputs that may declare how its weights are rounded.
        padding: what padding does to its answers; None where that is not known.
        locate_padding: finds where that enters, in the ids of a text; None where that cannot be
            found.
        description: of a torch model.
        apart: a torch model in a process of its own; ``module`` is its outline, where it has one.
        close: releases it.
    """

    identity: RunIdentity
    module: torch.nn.Module | None = None
    record: Callable[[Sequence[ModelInputs], ReportStep], SpooledActivations] | None = None
    trace: Callable[..., Trace] | None = None
    recorded: RecordedActivations | None = None
    held: Callable[[], list[HeldValue]]
    encode: Callable[[Request], tuple[ModelInputs, bool]] | None = None
    max_length: int = 0
    vocabulary: str = ""
    tokenizer: Any = field(default=None, repr=False)
    render_chat: Callable[..., str] | None = None
    padding: PaddingEffect | None = None
    locate_padding: Callable[[Sequence[int]], tuple[str, float]] | None = None
    description: ModelDescription | None = None
    apart: TracedScorer | None = None
    said: Mapping[str, Value] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.identity.name

    def token_texts(self, inputs: ModelInputs) -> tuple[str, ...]:
        """What each position of a sequence says; () where nothing knows that, or an encoder and its
        decoder read other tokens."""
        ids = inputs.get("input_ids")
        if self.tokenizer is None or ids is None or "decoder_input_ids" in inputs:
            return ()
        return tuple(self.tokenizer.decode([int(token_id)]) for token_id in np.ravel(ids))


def _read_module(module: torch.nn.Module, tokenizer: Any) -> list[HeldValue]:
    """What a model computes with, and the special token that its tokenizer puts first."""
    from evalguard.models.hyperparameters_read import read_model

    values = read_model(module)
    if tokenizer is not None:
        bos = getattr(tokenizer, "bos_token_id", None)
        puts = bos is not None and list(tokenizer.encode("a"))[:1] == [bos]
        values = [held for held in values if held.name != "puts_bos_first"]
        values.append(HeldValue(name="puts_bos_first", value=puts, source="the tokenizer"))
    return values


def is_torch_here(source: ModelSource) -> bool:
    """Whether a model is a torch module of this process."""
    variant = source.variant
    return variant.model in HF_TYPES and not is_runtime(variant) and variant.serve is None


def refuse_untraceable(source: Source, option: str) -> ModelSource:
    """Return a side whose activations can be seen; ``option`` is what named it.

    Raises:
        UsageError: a finished run, a served model, or one of another library.
    """
    if not isinstance(source, ModelSource):
        raise UsageError(
            f"{option} '{source.name}' is a folder of dumped activations, and a trace asks its base"
            if isinstance(source, DumpSource)
            else f"{option} '{source.name}' is a finished run: it has scores, and no activations",
            hint="name the model itself",
        )
    variant = source.variant
    if variant.serve is not None or not (is_torch_here(source) or is_runtime(variant)):
        raise UsageError(
            f"{option} '{source.name}' is of model type '{variant.model}', which shows no "
            "activations",
            hint="name the model itself (model: hf), or record its activations, and give their "
            "folder to --cand",
        )
    return source


def refuse_worker_base(base: ModelSource, candidate: ModelSource | Path) -> None:
    """Refuse a base in a worker beside a candidate that is no model in a worker.

    Raises:
        UsageError: naming both.
    """
    runs_there = isinstance(candidate, ModelSource) and not is_torch_here(candidate)
    if not is_torch_here(base) and not runs_there:
        raise UsageError(
            f"--base '{base.name}' runs in a worker (model type '{base.variant.model}'), and the "
            "candidate does not",
            hint="name the Hugging Face model as --base, and this one as --cand",
        )


def open_torch_side(source: ModelSource, policy: ScoringPolicy, *, cache_dir: Path) -> TracedSide:
    """Load a model with the settings of its assignment, each proven to have taken.

    A checkpoint of a class that is no language model (an encoder) is loaded as that class.

    Raises:
        UsageError, SettingError, BuildError, EvaluationError: as loading it to score it does.
    """
    variant = source.variant
    with contextlib.redirect_stdout(sys.stderr):
        check_environment(plan_conversion(variant).env)
        plan = LoadPlan.of(variant, cache_dir=cache_dir)
        trusted = {"trust_remote_code": variant.trust_remote_code}
        language = variant.build is None and loads_as_language_model(
            plan.model_args, plan.plan.config_overrides, **trusted
        )
        if language or variant.build is not None:
            return _open_language_model(source, policy, cache_dir=cache_dir)
        return _open_declared_class(source, plan, policy)


def _open_language_model(
    source: ModelSource, policy: ScoringPolicy, *, cache_dir: Path
) -> TracedSide:
    from evalguard.models.lm_scorer import LMScorer

    scorer = load_scorer(source.variant, policy, cache_dir=cache_dir)
    assert isinstance(scorer, LMScorer)
    if scorer.module is None:
        scorer.close()
        raise EvaluationError(f"'{source.name}' has no torch module in this process")
    description = scorer.describe()

    def encode(request: Request) -> tuple[ModelInputs, bool]:
        ids, was_cut = cut_ids(scorer.encode([request])[0], request, description.max_length)
        return token_inputs(ids), was_cut

    def encode_for_decoder(request: Request) -> tuple[ModelInputs, bool]:
        before, scored = scorer.encode_halves(request)
        longest = description.max_length or max(len(before), len(scored))
        whole = request.kind == "loglikelihood_rolling"  # of which the first window is traced
        decoder = _decoder_ids(scorer.module, scored[:longest] if whole else scored[-longest:])
        cut = max(len(before), len(scored)) > longest
        return {**token_inputs(before[-longest:]), **decoder}, cut

    if getattr(getattr(scorer.module, "config", None), "is_encoder_decoder", False):
        encode = encode_for_decoder
    return TracedSide(
        identity=identify_model(source, description),
        module=scorer.module,
        held=partial(_read_module, scorer.module, scorer.tokenizer),
        encode=encode,
        max_length=description.max_length,
        vocabulary=description.vocabulary_digest,
        tokenizer=scorer.tokenizer,
        render_chat=scorer.render_chat,
        padding=description.padding,
        locate_padding=_padding_locator(scorer.module, scorer.tokenizer),
        description=description,
        said=read_said(source.variant),
        close=scorer.close,
    )


def _decoder_ids(module: Any, scored: Sequence[int]) -> ModelInputs:
    """What a decoder reads to score tokens, by the rule of its class; to generate, the first.

    Raises:
        UsageError: nothing says with which token it begins.
    """
    import torch

    shift = getattr(module, "prepare_decoder_input_ids_from_labels", None)
    if scored and shift is not None:
        ids = shift(labels=torch.tensor([list(scored)])).tolist()
        return {"decoder_input_ids": np.asarray(ids, dtype=np.int64)}
    configs = (getattr(module, "generation_config", None), module.config)
    starts = [getattr(config, "decoder_start_token_id", None) for config in configs]
    start = next((start_id for start_id in starts if start_id is not None), None)
    if start is None:
        raise UsageError(
            f"{type(module).__name__} does not say with which token its decoder begins",
            hint="--inputs FILE gives input_ids and decoder_input_ids",
        )
    return {"decoder_input_ids": np.asarray([[start, *scored[:-1]]], dtype=np.int64)}


def _padding_locator(
    module: torch.nn.Module, tokenizer: Any
) -> Callable[[Sequence[int]], tuple[str, float]] | None:
    if tokenizer is None:
        return None
    from evalguard.tracing.measure.padding_trace import locate_padding

    return partial(locate_padding, module, pad=tokenizer.pad_token_id)


def cut_ids(ids: Sequence[int], request: Request, longest: int) -> tuple[Sequence[int], bool]:
    """The ids that a model is fed to score a request: without the last one, cut as lm-eval does.

    Of a whole text the first window. A text of the user's own is not cut here.
    """
    if request.kind == "generate_until" and not request.task:
        return ids, False
    fed = ids if request.kind == "generate_until" else ids[:-1]
    if not longest or len(fed) <= longest:
        return fed, False
    return fed[:longest] if request.kind == "loglikelihood_rolling" else fed[-longest:], True


def _open_declared_class(
    source: ModelSource, wanted: LoadPlan, policy: ScoringPolicy
) -> TracedSide:
    variant = source.variant
    taking = [edit.setting for edit in wanted.plan.modules if edit.source is not None]
    if taking:
        raise SettingError(
            f"setting '{taking[0]}' takes modules of another model, and '{source.name}' is no "
            "language model",
            hint="leave its module: settings at null for this trace",
            setting=taking[0],
        )
    module = load_declared_class(
        wanted.model_args,
        wanted.plan.config_overrides,
        device=policy.device,
        trust_remote_code=variant.trust_remote_code,
        allow_pickle=variant.allow_pickle,
    )
    code: dict[str, Any] = {
        "code_folder": variant.code_folder,
        "allow_code": variant.allow_code,
    }
    take_weights(module, wanted.plan.weights, tensor_reader(variant))
    apply(module, wanted.plan, **code)
    effective = {**wanted.plan.config_overrides, **read_edits(module, wanted.plan, **code)}
    tokenizer = _find_tokenizer(variant, wanted)

    def encode(request: Request) -> tuple[ModelInputs, bool]:
        given = tokenizer(str(request.arguments[0]), return_tensors="np")
        return {name: np.asarray(value) for name, value in given.items()}, False

    parameters = list(module.parameters())
    description = ModelDescription(
        model_type=type(module).__name__,
        effective={setting.name: effective.get(setting.name) for setting in variant.settings},
        parameters=sum(parameter.numel() for parameter in parameters),
        dtype=str(parameters[0].dtype).removeprefix("torch.") if parameters else "",
        device=str(parameters[0].device) if parameters else "",
    )
    return TracedSide(
        identity=identify_model(source, description),
        module=module,
        held=partial(_read_module, module, tokenizer),
        encode=None if tokenizer is None else encode,
        max_length=int(getattr(module.config, "max_position_embeddings", 0) or 0),
        tokenizer=tokenizer,
        locate_padding=_padding_locator(module, tokenizer),
        description=description,
        said=read_said(variant),
    )


# Of model_args: names of places, which declare nothing.
_PLACES = frozenset({"pretrained", "tokenizer", "peft", "delta", "revision", "subfolder", "model"})


def read_said(variant: Variant) -> dict[str, Value]:
    """What a guard file or the command line says of a model beside where it is, by name."""
    differing: dict[str, Value] = {
        name: value for name, value in variant.model_args.items() if name not in _PLACES
    }
    for setting in variant.settings:
        value = variant.assignment.get(setting.name)
        if value != setting.reference:
            differing[setting.name] = value
    if variant.build is not None:
        differing["build"] = {"call": variant.build.call, **variant.build.inputs}
    return differing


def _find_tokenizer(variant: Variant, wanted: LoadPlan) -> Any:
    try:
        return load_tokenizer(wanted.model_args, trust_remote_code=variant.trust_remote_code)
    except EvaluationError:
        return None  # a model of signals has none
