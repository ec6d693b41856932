"""The two sides of a trace: torch models with their settings applied, or activations of others."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from evalguard.conversion.attributes import apply
from evalguard.conversion.planning import plan_conversion
from evalguard.conversion.readback import check_environment, read_edits
from evalguard.conversion.taken_weights import take_weights
from evalguard.core.reports.compare import RunIdentity
from evalguard.core.reports.trace import TracedDocument
from evalguard.core.scorer import ActivationScorer, ModelDescription, Request, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.core.tracing.points import ModelInputs, RecordedActivations, token_inputs
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.comparison import load_tokenizer
from evalguard.models.loading import load_declared_class, loads_as_language_model
from evalguard.run.loading.edited_model import LoadPlan, load_scorer, tensor_reader
from evalguard.run.loading.lazy_scorer import open_scorer
from evalguard.run.loading.own_environment import is_runtime
from evalguard.run.options import CompareOptions
from evalguard.run.sources import ModelSource, Source, identify_model
from evalguard.run.tracing.documents import RequestedSequence
from evalguard.store.activation_dumps import SUFFIXES, DumpedActivations, SpooledActivations
from evalguard.store.name_map import read_name_map

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSide:
    """A loaded torch model.

    Attributes:
        encode: a request's token ids, and whether they were cut to the context; None for a model
            that reads no text.
        max_length: tokens that it may read; 0 where unknown.
        vocabulary: digest of it; "" where unknown.
        render_chat: its chat template; None where it has none.
        close: releases it.
    """

    identity: RunIdentity
    module: torch.nn.Module
    encode: Callable[[Request], tuple[ModelInputs, bool]] | None
    max_length: int = 0
    vocabulary: str = ""
    tokenizer: Any = field(default=None, repr=False)
    render_chat: Callable[..., str] | None = None
    close: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.identity.name

    def read_hyperparameters(self) -> list[HeldValue]:
        """Read what it computes with, and the special tokens that its tokenizer puts first."""
        from evalguard.models.tracing.hyperparameters import read_model

        found = read_model(self.module)
        if self.tokenizer is not None:
            bos = getattr(self.tokenizer, "bos_token_id", None)
            first = list(self.tokenizer.encode("a"))[:1]
            puts = bos is not None and first == [bos]
            found = [one for one in found if one.name != "puts_bos_first"]
            found.append(HeldValue(name="puts_bos_first", value=puts, source="the tokenizer"))
        return found

    def token_texts(self, inputs: ModelInputs) -> tuple[str, ...]:
        """What each position of a sequence says; () where nothing knows that."""
        ids = inputs.get("input_ids")
        if self.tokenizer is None or ids is None:
            return ()
        return tuple(self.tokenizer.decode([int(one)]) for one in np.ravel(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSide:
    """A candidate that is no torch module here: its activations are recorded, or were.

    Attributes:
        record: returns its activations for inputs, in their order.
        held: hyper-parameters, as far as it shows them.
        encode, max_length, vocabulary: as of ``TorchSide``; None, 0 and "" where unknown.
    """

    identity: RunIdentity
    record: Callable[[Sequence[ModelInputs]], RecordedActivations]
    held: tuple[HeldValue, ...] = ()
    encode: Callable[[Request], tuple[ModelInputs, bool]] | None = None
    max_length: int = 0
    vocabulary: str = ""
    close: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.identity.name


TracedSide = TorchSide | RecordedSide


def is_torch_here(source: ModelSource) -> bool:
    """Whether a model is a torch module of this process."""
    variant = source.variant
    return variant.model in HF_TYPES and not is_runtime(variant) and variant.serve is None


def refuse_untraceable(source: Source, role: Literal["base", "cand"]) -> ModelSource:
    """Return a side whose activations can be seen.

    Raises:
        UsageError: a finished run, a served model, one of another library; a base that is no torch
            model here.
    """
    if not isinstance(source, ModelSource):
        raise UsageError(
            f"--{role} '{source.name}' is a finished run: it has scores, and no activations",
            hint="name the model itself",
        )
    kind = source.variant.model
    if source.variant.serve is not None or not (
        is_torch_here(source) or is_runtime(source.variant)
    ):
        raise UsageError(
            f"--{role} '{source.name}' is of model type '{kind}', which shows no activations",
            hint="name the model itself (model: hf), or record its activations, and give their "
            "folder to --cand",
        )
    if role == "base" and not is_torch_here(source):
        raise UsageError(
            f"--base '{source.name}' is of model type '{kind}', and the base of a trace is a torch "
            "model of this process",
            hint="name the Hugging Face model as --base, and this one as --cand",
        )
    return source


def open_torch_side(source: ModelSource, policy: ScoringPolicy, *, cache_dir: Path) -> TorchSide:
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
) -> TorchSide:
    from evalguard.models.lm_scorer import LMScorer

    scorer = load_scorer(source.variant, policy, cache_dir=cache_dir)
    assert isinstance(scorer, LMScorer)
    if scorer.module is None:
        scorer.close()
        raise EvaluationError(f"'{source.name}' has no torch module in this process")
    description = scorer.describe()

    def encode(request: Request) -> tuple[ModelInputs, bool]:
        ids, was_cut = _cut_ids(scorer.encode([request])[0], request, description.max_length)
        return token_inputs(ids), was_cut

    return TorchSide(
        identity=identify_model(source, description),
        module=scorer.module,
        encode=encode,
        max_length=description.max_length,
        vocabulary=description.vocabulary_digest,
        tokenizer=scorer.tokenizer,
        render_chat=scorer.render_chat,
        close=scorer.close,
    )


def _cut_ids(ids: Sequence[int], request: Request, longest: int) -> tuple[Sequence[int], bool]:
    """The ids that a model is fed to score a request: without the last one, cut as lm-eval does.

    Of a whole text the first window. A text of the user's own is not cut here.
    """
    if request.kind == "generate_until" and not request.task:
        return ids, False
    fed = ids if request.kind == "generate_until" else ids[:-1]
    if not longest or len(fed) <= longest:
        return fed, False
    return fed[:longest] if request.kind == "loglikelihood_rolling" else fed[-longest:], True


def _open_declared_class(source: ModelSource, wanted: LoadPlan, policy: ScoringPolicy) -> TorchSide:
    variant = source.variant
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
        effective={one.name: effective.get(one.name) for one in variant.settings},
        parameters=sum(one.numel() for one in parameters),
        dtype=str(parameters[0].dtype).removeprefix("torch.") if parameters else "",
        device=str(parameters[0].device) if parameters else "",
    )
    return TorchSide(
        identity=identify_model(source, description),
        module=module,
        encode=None if tokenizer is None else encode,
        max_length=int(getattr(module.config, "max_position_embeddings", 0) or 0),
        tokenizer=tokenizer,
    )


def _find_tokenizer(variant: Variant, wanted: LoadPlan) -> Any:
    try:
        return load_tokenizer(wanted.model_args, trust_remote_code=variant.trust_remote_code)
    except EvaluationError:
        return None  # a model of signals has none


# A candidate that runs in a worker, or ran elsewhere.


def open_worker_side(
    source: ModelSource, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
) -> RecordedSide:
    """Start the worker of a model that another library runs, or another environment.

    Raises:
        EvaluationError: the model cannot be loaded.
    """
    scorer = open_scorer(source.variant, policy, options, cache_dir=cache_dir)
    description = scorer.describe()
    spools: list[SpooledActivations] = []

    def encode(request: Request) -> tuple[ModelInputs, bool]:
        ids, was_cut = _cut_ids(scorer.encode([request])[0], request, description.max_length)
        return token_inputs(ids), was_cut

    def record(inputs: Sequence[ModelInputs]) -> RecordedActivations:
        if not hasattr(scorer, "activations"):
            raise UsageError(f"model type '{source.variant.model}' shows no activations")
        spool = SpooledActivations(precision=_precision(description.dtype))
        spools.append(spool)
        for one in inputs:
            ids = [int(token) for token in np.ravel(one["input_ids"])]
            spool.add(cast(ActivationScorer, scorer).activations(ids))
        return spool

    def close() -> None:
        for spool in spools:
            spool.close()
        scorer.close()

    return RecordedSide(
        identity=identify_model(source, description),
        record=record,
        held=tuple(_declared_hyperparameters(source.variant)),
        encode=encode,
        max_length=description.max_length,
        vocabulary=description.vocabulary_digest,
        close=close,
    )


def _precision(dtype: str) -> str:
    """The dtype that most of the weights have, where a trace knows it."""
    first = dtype.partition("+")[0]
    return first if first in ("float32", "float16", "bfloat16") else ""


def _declared_hyperparameters(variant: Variant) -> Iterator[HeldValue]:
    """What a model's files and arguments say: a worker does not show what its library holds."""
    from evalguard.models.tracing.hyperparameters import read_hyperparameter_file, read_named_values

    plan = plan_conversion(variant)
    lens = variant.model == "transformer_lens"
    given = {name: value for name, value in plan.model_args.items() if value is not None}
    own = read_named_values(given, prefix="model_args", lens=lens)
    yield from own
    pretrained = Path(str(plan.model_args.get("pretrained") or "")).expanduser()
    file = pretrained / "config.json" if pretrained.is_dir() else pretrained
    if file.is_file() and file.suffix in (".json", ".gguf"):
        named = {one.name for one in own}
        yield from (one for one in read_hyperparameter_file(file) if one.name not in named)


def open_recorded_side(folder: Path, name_map: Path | None) -> RecordedSide:
    """Open a folder of activations that another runtime has written.

    Raises:
        UsageError: there is none, or the name map cannot be used.
        EvaluationError: a file is damaged.
    """
    from evalguard.models.tracing.hyperparameters import read_named_values

    dumped = DumpedActivations(folder, None if name_map is None else read_name_map(name_map))

    def record(inputs: Sequence[ModelInputs]) -> RecordedActivations:
        if len(dumped) != len(inputs):
            raise UsageError(
                f"{folder} holds activations of {len(dumped)} sequences, and {len(inputs)} are "
                "traced",
                hint="give the documents that were recorded, in the order of the folders: --text "
                "or --inputs for each, or --documents",
            )
        return dumped

    lens = "d_vocab" in dumped.hyperparameters
    return RecordedSide(
        identity=RunIdentity(name=folder.name, digest="", description=f"activations in {folder}"),
        record=record,
        held=tuple(read_named_values(dumped.hyperparameters, lens=lens)),
    )


def is_recording(path: Path) -> bool:
    """Whether a folder holds activations, and no model: tensors in it or one below, no weights."""
    if not path.is_dir() or (path / "config.json").is_file():
        return False
    folders = [path, *sorted(one for one in path.iterdir() if one.is_dir())[:1]]
    return any(one.suffix in SUFFIXES for folder in folders for one in folder.iterdir())


# From requested sequences to the inputs of both models.


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSequences:
    """Inputs of both models, the documents that they stand for, and what is to be said."""

    inputs: tuple[ModelInputs, ...]
    documents: tuple[TracedDocument, ...]
    notes: tuple[str, ...] = ()


def encode_sequences(
    requested: Sequence[RequestedSequence], base: TorchSide, candidate: TracedSide
) -> EncodedSequences:
    """Encode sequences with the base's tokenizer, and see that the candidate reads the same ids.

    Raises:
        UsageError: a text of no tokens, one that is longer than a model reads, or one for a model
            that reads none.
        MisalignedRunsError: the candidate reads other token ids.
    """
    if any(one.inputs is None for one in requested):
        _check_vocabularies(base, candidate)
    inputs: list[ModelInputs] = []
    documents: list[TracedDocument] = []
    cut = 0
    for one in requested:
        found, was_cut = _encode_one(one, base, candidate)
        cut += was_cut
        request = one.request
        inputs.append(found)
        documents.append(
            TracedDocument(
                name=one.name,
                tokens=count_positions(found),
                task="" if request is None else request.task,
                doc_id=request.doc_id if request is not None and request.task else None,
                request=request.index if request is not None and request.task else None,
                drift=one.drift,
                token_texts=base.token_texts(found),
            )
        )
    notes: tuple[str, ...] = ()
    if cut:
        plural = "documents are" if cut > 1 else "document is"
        notes = (f"{cut} {plural} cut to the model's context of {base.max_length:,} tokens",)
    return EncodedSequences(inputs=tuple(inputs), documents=tuple(documents), notes=notes)


def _check_vocabularies(base: TorchSide, candidate: TracedSide) -> None:
    digests = {base.vocabulary, candidate.vocabulary} - {""}
    if len(digests) > 1:
        raise MisalignedRunsError(
            f"{base.name} and {candidate.name} have different vocabularies: one token id means "
            "different texts to the two",
            hint="trace a model with its own port; --inputs gives token ids that both are meant to "
            "read",
        )


def count_positions(inputs: ModelInputs) -> int:
    """Positions of a sequence: the longest second axis of its inputs."""
    return max((int(one.shape[1]) for one in inputs.values() if one.ndim > 1), default=1)


def _encode_one(
    one: RequestedSequence, base: TorchSide, candidate: TracedSide
) -> tuple[ModelInputs, bool]:
    if one.inputs is not None:
        _check_inputs(one, base)
        return one.inputs, False
    assert one.request is not None
    if base.encode is None:
        raise UsageError(
            f"{base.name} has no tokenizer, so it reads no text",
            hint="--inputs FILE.npz gives its inputs by name, e.g. input_values",
        )
    found, was_cut = base.encode(one.request)
    ids = found["input_ids"]
    if not ids.size:
        raise UsageError(f"{one.name}: the text has no tokens", hint="give a longer text")
    longest = min((side.max_length for side in (base, candidate) if side.max_length), default=0)
    if longest and ids.shape[1] > longest:
        raise UsageError(
            f"{one.name} has {ids.shape[1]:,} tokens, and the models read {longest:,}",
            hint="cut the text, or give its parts as files of their own",
        )
    if candidate.encode is not None:
        other, _ = candidate.encode(one.request)
        _check_same_ids(one, base, candidate, ids, other["input_ids"])
    return found, was_cut


def _check_same_ids(
    one: RequestedSequence, base: TorchSide, candidate: TracedSide, ids: Any, other: Any
) -> None:
    if ids.shape == other.shape and bool(np.all(ids == other)):
        return
    first, second = np.ravel(ids).tolist(), np.ravel(other).tolist()
    at = next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
    shown = [repr(list(side[at : at + 4])) for side in (first, second)]
    raise MisalignedRunsError(
        f"{candidate.name} reads other token ids of {one.name} than {base.name}: from position "
        f"{at} on {shown[1]} for {shown[0]} ({len(second)} and {len(first)} tokens)",
        hint="a trace compares the models, not their tokenizers: evalguard compare says what the "
        "tokens cost; --inputs gives both the same ids",
    )


def _check_inputs(one: RequestedSequence, base: TorchSide) -> None:
    """Refuse token ids that the base does not know, which would fail deep in the model."""
    assert one.inputs is not None
    ids = one.inputs.get("input_ids")
    embeddings = getattr(base.module, "get_input_embeddings", None)
    if ids is None or embeddings is None:
        return
    if ids.dtype.kind not in "iu":
        raise UsageError(f"{one.name}: input_ids are {ids.dtype}, not whole numbers")
    try:
        known = int(embeddings().num_embeddings)
    except (NotImplementedError, AttributeError):
        return
    if ids.size and (int(ids.max()) >= known or int(ids.min()) < 0):
        raise UsageError(
            f"{one.name}: token id {int(ids.max() if ids.max() >= known else ids.min())} is not "
            f"in the vocabulary of {known:,}"
        )
