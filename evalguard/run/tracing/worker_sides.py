"""A candidate that runs in a worker, or ran elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.core.tracing.hyperparameters import HeldValue, add_declared
from evalguard.core.tracing.points import ModelInputs, RecordedActivations, token_inputs
from evalguard.errors import MisalignedRunsError, UsageError
from evalguard.models.tracing.passes import ReportStep
from evalguard.run.built_arguments import find_built_arguments
from evalguard.run.loading.scorer_opening import worker_starter
from evalguard.run.options import CompareOptions
from evalguard.run.sources import ModelSource
from evalguard.run.tracing.recorded_sides import open_dump, open_runtime_side
from evalguard.run.tracing.sides import TracedSide, cut_ids
from evalguard.run.tracing.traced_documents import read_inputs
from evalguard.store.activation_dumps import (
    INPUTS_FILE,
    DumpedActivations,
    list_sequences,
)
from evalguard.store.activation_spool import SpooledActivations
from evalguard.store.name_map_file import read_name_map


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
    from evalguard.models.tracing.read_hyperparameters import (
        read_hyperparameter_file,
        read_named_values,
    )

    arguments = find_built_arguments(variant, cache_dir)
    lens = variant.model == "transformer_lens"
    given = {name: value for name, value in arguments.items() if value is not None}
    own = read_named_values(given, prefix="model_args", lens=lens)
    yield from own
    pretrained = Path(str(arguments.get("pretrained") or "")).expanduser()
    file = pretrained / "config.json" if pretrained.is_dir() else pretrained
    if file.is_file() and file.suffix in (".json", ".gguf"):
        named = {one.name for one in own}
        yield from (one for one in read_hyperparameter_file(file) if one.name not in named)


def open_dumped_side(folder: Path, name_map: Path | None, base: TracedSide) -> TracedSide:
    """Open a folder of activations that another runtime has written.

    Raises:
        UsageError: there is none, none of the base's modules, or the name map cannot be used.
        EvaluationError: a file is damaged.
    """
    from evalguard.models.tracing.read_hyperparameters import read_named_values

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
        (told, *more) = read_inputs(file)
        common = told.keys() & traced.keys()
        other = sorted(one for one in common if not np.array_equal(told[one], traced[one]))
        if more or other or not common:
            raise MisalignedRunsError(
                f"{file} says that {folder.name} was made of other inputs than are traced: "
                f"{', '.join(other or sorted(told))}",
                hint="leave --text, --inputs and --tasks out: the dump's own inputs are read then",
            )
