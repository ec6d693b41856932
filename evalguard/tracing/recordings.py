"""Candidates that are recordings: made in a worker, or found in a dump."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from evalguard.config.options import CompareOptions
from evalguard.core.compare_report import RunIdentity
from evalguard.core.hyperparameters import HeldValue, add_declared
from evalguard.core.name_map import NameMap
from evalguard.core.scorer import (
    ActivationScorer,
    ModelDescription,
    Request,
    Scorer,
    ScoringPolicy,
    TracingScorer,
)
from evalguard.core.settings import Variant
from evalguard.core.trace_points import (
    ROOT,
    ModelInputs,
    ModelRounding,
    PointName,
    RecordedActivations,
    token_inputs,
)
from evalguard.core.trace_record import Trace
from evalguard.core.weight_precision import QUANTISED
from evalguard.engine.built_arguments import find_built_arguments
from evalguard.engine.loading.own_environment import check_runtime, prepare_worker
from evalguard.engine.loading.scorer_opening import worker_starter
from evalguard.engine.run_identities import identify_model
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.store.atomic_files import safe_name
from evalguard.tensor_files.activation_dumps import INPUTS_FILE, DumpedActivations, list_sequences
from evalguard.tensor_files.name_map_file import read_name_map
from evalguard.tracing.measure.activation_spool import SpooledActivations
from evalguard.tracing.measure.forced_trace import DEFAULT_MEMORY
from evalguard.tracing.measure.passes import ReportStep
from evalguard.tracing.traced_documents import read_inputs
from evalguard.tracing.traced_sides import TracedSide, cut_ids
from evalguard.worker.client import StartWorker, WorkerScorer, start_here

# What a runtime says that its weights are -> the class of a twin that is rounded alike
# (core/tracing/precision); of others that it names the trace finds out what explains them.
_PRECISIONS = {
    **{name: name for name in ("float32", "float16", "bfloat16")},
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "q8_0": "int8 in groups of 32",
    "q4_0": "int4 in groups of 32",
}
_NOT_QUANTISED = {"f64", "f32", "f16", "bf16"}
_ALONE = {"input_ids", "attention_mask", "token_type_ids"}
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSide:
    """A model of another library or environment, in a worker of its own.

    Attributes:
        vocabulary: digest of it; "" where unknown.
    """

    identity: RunIdentity
    scorer: Scorer
    rounding: ModelRounding
    max_length: int
    vocabulary: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.identity.name

    def encode(self, request: Request) -> list[int]:
        """Token ids of a request, uncut: a model is fed all but the last one to score it."""
        return list(self.scorer.encode([request])[0])

    def record(
        self,
        sequences: Sequence[ModelInputs],
        *,
        wanted: Collection[str] = (),
        report_step: ReportStep | None = None,
    ) -> SpooledActivations:
        """Record what flows in it while it reads; one tensor at a time is in memory.

        Args:
            wanted: points; empty: all that it shows.

        Returns:
            What was recorded, in a temporary folder that closing it removes.

        Raises:
            UsageError: its library shows no activations, or it does not read these inputs.
            EvaluationError: it fails, or shows nothing.
        """
        spool = SpooledActivations(self.rounding)
        try:
            for number, inputs in enumerate(sequences):
                if report_step is not None:
                    report_step(f"recording {self.name}", number, len(sequences))
                ids = read_token_ids(inputs, self.name)
                scorer = cast(ActivationScorer, self.scorer)
                spool.add(scorer.activations(ids, wanted))
                if not spool.names(number):
                    raise EvaluationError(
                        f"'{self.name}' showed no activation of {len(ids)} tokens"
                    )
        except BaseException:
            spool.close()
            raise
        return spool

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as its library holds them; () where that shows none."""
        return cast(ActivationScorer, self.scorer).held_values()

    def trace(
        self,
        recorded: SpooledActivations,
        sequences: Sequence[ModelInputs],
        *,
        memory: int = DEFAULT_MEMORY,
        detail: Collection[str] = (),
    ) -> Trace:
        """Trace a candidate's recorded activations with this model as the base.

        For two models of an environment that is not this one: two kernels of one library.

        Raises:
            UsageError: this model has no torch module whose names are points.
            EvaluationError: no common points, or it fails.
        """
        ids = [read_token_ids(inputs, self.name) for inputs in sequences]
        files = [recorded.files(number) for number in range(len(ids))]
        scorer = cast(TracingScorer, self.scorer)
        return scorer.trace_recorded(
            ids, files, rounding=recorded.rounding, memory=memory, detail=detail
        )

    def close(self) -> None:
        """Release the model. May be called twice."""
        self.scorer.close()


def open_runtime_side(
    source: ModelSource,
    policy: ScoringPolicy,
    *,
    cache_dir: Path,
    timeout: float | None = None,
    start: StartWorker = start_here,
) -> RuntimeSide:
    """Load a model of one of evalguard's runtimes in a worker of its environment.

    Args:
        timeout: seconds that a call to it may take; None: no limit.

    Raises:
        UsageError, SettingError, BuildError, EvaluationError: as loading it to score it does.
    """
    check_runtime(source.variant)
    prepared = prepare_worker(source.variant, cache_dir)
    scorer = WorkerScorer(
        prepared.variant,
        policy,
        cache_dir=cache_dir,
        env=prepared.env,
        python=prepared.python,
        call_timeout=timeout,
        start=start,
        log=cache_dir / "logs" / f"trace-{os.getpid()}-{safe_name(source.name)}.log",
    )
    description = scorer.describe()
    return RuntimeSide(
        identity=identify_model(source, description),
        scorer=scorer,
        rounding=ModelRounding(
            precision=_precision_of(description),
            computes_in=_dtype_of_cache(description),
            inputs=_rounding_of_inputs(description),
        ),
        max_length=description.max_length,
        vocabulary=description.vocabulary_digest,
    )


def _precision_of(description: ModelDescription) -> str:
    """The class of all weights, where they have one; of several quantised types none is it."""
    if len(_read_types(description, "weight_types") - _NOT_QUANTISED) > 1:
        return QUANTISED
    return _PRECISIONS.get(description.dtype, QUANTISED if description.dtype else "")


def _rounding_of_inputs(description: ModelDescription) -> str:
    """What ggml multiplies quantised weights with: blocks of int8 (q8_0; q8_K has longer ones)."""
    quantised = _read_types(description, "weight_types") - _NOT_QUANTISED
    return _PRECISIONS["q8_0"] if quantised else ""


def _dtype_of_cache(description: ModelDescription) -> str:
    """The dtype in which an engine keeps keys and values, where that is not float32.

    Coarser than 16 bits, a quantised cache is an error and no floor.
    """
    kinds = _read_types(description, "cache_dtype") - {"f32"}
    return "bfloat16" if "bf16" in kinds else "float16" if kinds else ""


def _read_types(description: ModelDescription, name: str) -> set[str]:
    types = description.computation.get(name)
    return set(map(str, types)) if isinstance(types, list) else set()


def read_token_ids(inputs: ModelInputs, name: str) -> list[int]:
    """Token ids of a sequence for a model that reads nothing else.

    Raises:
        UsageError: there are none, or others are left out by a mask.
    """
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None or set(inputs) - _ALONE:
        raise UsageError(
            f"'{name}' reads token ids, and the inputs are {', '.join(sorted(inputs))}",
            hint="dump its activations to files, and name their folder in place of the model",
        )
    if ids.shape[:-1] not in ((), (1,)) or (mask is not None and not np.all(mask)):
        raise UsageError(
            f"'{name}' reads one sequence without padding, and the inputs have the shape "
            f"{list(ids.shape)}" + ("" if mask is None else " with a mask"),
            hint="give one sequence for each document, without padding",
        )
    return [int(token_id) for token_id in np.ravel(ids)]


def open_dump(
    folder: Path, names: NameMap | None = None, *, modules: Collection[str] = ()
) -> DumpedActivations:
    """Open a folder of dumped activations.

    Args:
        names: which tensor is which point of the base.
        modules: names of the base's modules, by which it is seen that the two belong together.

    Raises:
        UsageError: nothing is in it that stands for a point of one of these modules, or a rule of
            the map gives none.
        EvaluationError: a file is damaged.
    """
    dump = DumpedActivations(folder, names, modules=modules)
    if modules:
        points = list(dict.fromkeys(name for n in range(len(dump)) for name in dump.names(n)))
        known = frozenset((*modules, ROOT))
        if not any(PointName.parse(point).module in known for point in points):
            inside = [name for name in known if name.count(".") > 1] or sorted(known)
            raise UsageError(
                f"no tensor of {folder} has the name of a module of the base: it has "
                f"{_show(points)}, the base {_show(sorted(inside))}",
                hint="evalguard dump (--port) proposes a name map, or write one: "
                'map: [{base: "model.layers.*.mlp:out", cand: "ffn_out-*"}]',
            )
        _refuse_idle_rules(names or NameMap(), folder, points, known)
    return dump


def _refuse_idle_rules(
    names: NameMap, folder: Path, points: Sequence[str], modules: Collection[str]
) -> None:
    """Refuse a rule that gives no point of the base: what it was written for is not compared."""
    given = [point for point in points if PointName.parse(point).module in modules]
    for rule in names.rules:
        if not any(rule.match(point) or rule.match(point.removesuffix(":out")) for point in given):
            raise UsageError(
                f"a rule of the name map gives no point of the base: {{base: {rule.base}, cand: "
                f"{rule.cand}}}; {folder} and the map have {_show(points)}, the base has modules "
                f"like {_show(sorted(module for module in modules if module.count('.') > 1))}",
                hint="correct it, or take it out of the map",
            )


def _show(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_SHOWN])
    return f"{shown} ..." if len(names) > _MOST_SHOWN else shown


def open_worker_side(
    source: ModelSource, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
) -> TracedSide:
    """Start the worker of a model that another library runs, or another environment.

    Raises:
        UsageError, SettingError, BuildError, EvaluationError: as loading it to score it does.
    """
    side = open_runtime_side(
        source,
        policy,
        cache_dir=cache_dir,
        timeout=options.timeout,
        start=worker_starter(options),
    )

    def encode(request: Request) -> tuple[ModelInputs, bool]:
        ids, was_cut = cut_ids(side.encode(request), request, side.max_length)
        return token_inputs(ids), was_cut

    def record(inputs: Sequence[ModelInputs], step: ReportStep) -> SpooledActivations:
        return side.record(inputs, report_step=step)

    return TracedSide(
        identity=side.identity,
        record=record,
        trace=side.trace,
        held=lambda: add_declared(
            side.held_values(), read_declared_hyperparameters(source.variant, cache_dir)
        ),
        encode=encode,
        max_length=side.max_length,
        vocabulary=side.vocabulary,
        close=side.close,
    )


def read_declared_hyperparameters(variant: Variant, cache_dir: Path) -> Iterator[HeldValue]:
    """What a model's files and arguments say, whatever a library makes of it.

    Args:
        cache_dir: where what a recipe makes is kept.

    Raises:
        EvaluationError: a file cannot be read, or what the recipe made is not there.
    """
    from evalguard.models.hyperparameters_read import read_hyperparameter_file, read_named_values

    arguments = find_built_arguments(variant, cache_dir)
    lens = variant.model == "transformer_lens"
    given = {name: value for name, value in arguments.items() if value is not None}
    own = read_named_values(given, prefix="model_args", lens=lens)
    yield from own
    pretrained = Path(str(arguments.get("pretrained") or "")).expanduser()
    file = pretrained / "config.json" if pretrained.is_dir() else pretrained
    if file.is_file() and file.suffix in (".json", ".gguf"):
        named = {held.name for held in own}
        yield from (held for held in read_hyperparameter_file(file) if held.name not in named)


def open_dumped_side(folder: Path, name_map: Path | None, base: TracedSide) -> TracedSide:
    """Open a folder of activations that another runtime has written.

    Raises:
        UsageError: there is none, none of the base's modules, or the name map cannot be used.
        EvaluationError: a file is damaged.
    """
    from evalguard.models.hyperparameters_read import read_named_values

    names = None if name_map is None else read_name_map(name_map)
    modules = [] if base.module is None else [name for name, _ in base.module.named_modules()]
    dump = open_dump(folder, names, modules=[name for name in modules if name])
    lens = "d_vocab" in dump.hyperparameters
    return TracedSide(
        identity=RunIdentity(name=folder.name, digest="", description=f"activations in {folder}"),
        recorded=dump,
        held=lambda: read_named_values(dump.hyperparameters, lens=lens),
    )


def check_dump(dump: RecordedActivations, inputs: Sequence[ModelInputs]) -> None:
    """Refuse a dump of another number of sequences than are traced, or of other inputs.

    Raises:
        UsageError: with both numbers.
        MisalignedRunsError: a sequence of the dump was made of other inputs, as it says.
    """
    if not isinstance(dump, DumpedActivations):
        return
    if len(dump) != len(inputs):
        raise UsageError(
            f"{dump.folder} holds activations of {len(dump)} sequences, and {len(inputs)} are "
            "traced",
            hint="give the documents that were recorded, in the order of the folders: --text or "
            "--inputs for each, or --documents",
        )
    for folder, traced in zip(list_sequences(dump.folder), inputs, strict=True):
        file = folder / INPUTS_FILE
        if not file.is_file():
            continue
        (recorded, *extra) = read_inputs(file)
        common = recorded.keys() & traced.keys()
        differing = sorted(
            name for name in common if not np.array_equal(recorded[name], traced[name])
        )
        if extra or differing or not common:
            raise MisalignedRunsError(
                f"{file} says that {folder.name} was made of other inputs than are traced: "
                f"{', '.join(differing or sorted(recorded))}",
                hint="leave --text, --inputs and --tasks out: the dump's own inputs are read then",
            )
