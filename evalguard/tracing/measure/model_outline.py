"""A traced model that is in a process of its own: what that process says of it, and runs.

Code that a model brings may change a library for all models of its process, so it has one of its
own. A trace reads names, shapes and weights of a candidate, which stand here in an outline, and
runs passes of it, which are run there, against files of the base's activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evalguard.core.settings import Value
from evalguard.core.trace_points import ROOT
from evalguard.core.weight_precision import DeclaredPrecision
from evalguard.errors import EvaluationError
from evalguard.models.process_state import use_threads
from evalguard.tracing.measure.activation_spool import ActivationSpool
from evalguard.tracing.measure.benign_twins import attention_of, in_float32, why_not_upcast
from evalguard.tracing.measure.module_hooks import PointEvent, run_pass
from evalguard.tracing.measure.passes import ComparedPass, PointDetails, as_array
from evalguard.tracing.measure.weight_rounding import (
    is_plain,
    plain_weights,
    probe_matrix,
    read_declared,
)
from evalguard.worker.outlines import (
    LinearCall,
    ModelOutline,
    NonFinitePoint,
    OtherShape,
    OutlineCall,
    OutlinedModule,
    OutlinedTensor,
    PassCall,
    PassFound,
    TracedScorer,
    VisitedPoint,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evalguard.core.trace_points import ModelInputs
    from evalguard.tracing.measure.passes import ReportStep


# In the process of the model.


def write_outline(model: torch.nn.Module, call: OutlineCall) -> ModelOutline:
    """Say what a model is made of; its tensors go to a file."""
    from safetensors.torch import save_file

    names: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    held: list[object] = []  # so that no two of these have one id

    def outlined(key: str, tensor: torch.Tensor, *, stored: bool = True) -> OutlinedTensor:
        values, packed = _as_plain(tensor)
        if id(tensor) not in names:
            names[id(tensor)] = str(len(tensors))
            tensors[names[id(tensor)]] = values
            held.append(tensor)
        return OutlinedTensor(key=key, tensor=names[id(tensor)], packed=packed, stored=stored)

    modules: list[OutlinedModule] = []
    first: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in first:
            kind = type(module).__name__
            modules.append(OutlinedModule(name=name, kind=kind, same_as=first[id(module)] or ROOT))
            continue
        first[id(module)] = name
        passing = module._non_persistent_buffers_set
        modules.append(
            OutlinedModule(
                name=name,
                kind=type(module).__name__,
                parameters=tuple(
                    outlined(key, parameter)
                    for key, parameter in module._parameters.items()
                    if parameter is not None
                ),
                buffers=tuple(
                    outlined(key, buffer, stored=key not in passing)
                    for key, buffer in module._buffers.items()
                    if buffer is not None and not buffer.is_complex()
                ),
            )
        )
    with _room_in(Path(call.file).parent, "the weights of a traced model"):
        save_file(tensors, call.file)
    declared = read_declared(model, call.said)
    return ModelOutline(
        modules=tuple(modules),
        file=call.file,
        attention=attention_of(model),
        not_upcast=why_not_upcast(model),
        declared_by=declared.source,
        bits=declared.bits,
        dtypes=tuple(sorted(declared.dtypes)),
    )


def _as_plain(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """A copy as a file can hold it; of one that a library packs, the values that it stands for."""
    data = tensor.detach()
    if is_plain(tensor):
        return data.to("cpu", copy=True).contiguous(), False
    values = plain_weights(tensor)
    if values is None:
        return torch.zeros(0, dtype=torch.int8), True
    return torch.from_numpy(np.ascontiguousarray(values)), True


def write_linear(model: torch.nn.Module, call: LinearCall) -> bool:
    """Read a module's matrix, as ``probe_matrix``; False where that cannot be done."""
    matrix = probe_matrix(model.get_submodule(call.module), call.columns)
    if matrix is None:
        return False
    np.save(call.file, matrix, allow_pickle=False)
    return True


@dataclass(slots=True)
class PassRunner:
    """Runs passes of a model, a sequence a call, and keeps what is found in between."""

    model: torch.nn.Module
    _visitor: ComparedPass | None = None
    _recorded: list[Mapping[str, str]] = field(default_factory=list)
    _reference: _FileSource = field(default_factory=lambda: _FileSource())

    def run(self, call: PassCall) -> PassFound | None:
        """Run a sequence; what the pass has found after its last one.

        Raises:
            EvaluationError: the model fails.
        """
        if call.number == 0 or self._visitor is None:
            self._begin(call)
        visitor = self._visitor
        assert visitor is not None
        self._reference.files = call.reference
        visitor.sequence = call.number
        with use_threads(call.threads), ActivationSpool(_UNLIMITED) as spool:
            visitor.spool = spool if call.record else None
            if call.wide:
                with in_float32(self.model) as model:
                    run_pass(model, call.inputs, visitor, names=call.names)
            else:
                run_pass(self.model, call.inputs, visitor, names=call.names)
            if call.record:
                folder = Path(call.record)
                with _room_in(folder, "the activations of a traced model"):
                    self._recorded.append(_write_spool(spool, call.number, folder))
        if not call.last:
            return None
        self._visitor = None
        return _describe_pass(visitor, self._recorded)

    def _begin(self, call: PassCall) -> None:
        source = self._reference if call.reference else None
        self._visitor = ComparedPass(
            reference=source,
            forced=source if call.forced else None,
            details=PointDetails(call.detail, call.heads) if call.detail else None,
            released=frozenset(call.released),
            apart=call.apart,
        )
        self._recorded = []


_UNLIMITED = 2**62  # of one sequence, which its model holds at the same time


@dataclass(slots=True)
class _FileSource:
    """The base's activations of one sequence, in files."""

    files: Mapping[str, str] = field(default_factory=dict)

    def get(self, sequence: int, point: str) -> torch.Tensor | None:
        del sequence  # each call has its own files
        file = self.files.get(point)
        return None if file is None else torch.from_numpy(np.load(file, allow_pickle=False))


@contextmanager
def _room_in(folder: Path, what: str) -> Iterator[None]:
    """Say it where a folder has no room for what is written there."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise EvaluationError(
            f"{what} found no room in {folder}: {getattr(error, 'strerror', None) or error}",
            hint="trace fewer or shorter documents, or name a larger folder in TMPDIR",
        ) from error


def _write_spool(spool: ActivationSpool, sequence: int, folder: Path) -> dict[str, str]:
    """Write what was recorded of a sequence: every tensor once, under all of its points."""
    written: dict[str, str] = {}
    for number, point in enumerate(spool.points(sequence)):
        first = spool.stored_as(sequence, point)
        if first in written:
            written[point] = written[first]
            continue
        value = spool.get(sequence, point)
        assert value is not None
        file = folder / f"{sequence:06}-{number:06}.npy"
        np.save(file, as_array(value), allow_pickle=False)
        written[point] = str(file)
    return written


def _describe_pass(visitor: ComparedPass, recorded: Sequence[Mapping[str, str]]) -> PassFound:
    origin = None
    if visitor.origin is not None:
        event, elements, sequence = visitor.origin
        index, shape = visitor.origin_at
        origin = NonFinitePoint(
            point=_visited(event), elements=elements, sequence=sequence, place=index, shape=shape
        )
    return PassFound(
        events=tuple(map(_visited, visitor.events.values())),
        sums=visitor.first_sums,
        shapes=tuple(
            OtherShape(point=point, base=base, own=own)
            for point, (base, own) in visitor.shapes.items()
        ),
        rounded=visitor.rounded,
        cast=visitor.cast,
        origin=origin,
        details=visitor.details.results() if visitor.details is not None else (),
        recorded=tuple(recorded),
    )


def _visited(event: PointEvent) -> VisitedPoint:
    return VisitedPoint(name=event.name, module=event.module, code=event.code, leaf=event.leaf)


# Files of the base's activations of each sequence, by point.
SpoolFiles = Sequence[Mapping[str, str]]


class OutlinedModel(torch.nn.Module):
    """A module of a model that is in a process of its own: its tensors, and no code.

    Attributes:
        packed: names of the tensors that are stored quantised there.
        computes_in: of the whole model, the dtype of most of its weights.
        probe: reads its matrix, as ``probe_matrix``, there.
        passes: of the whole model, runs it there; None for a module in it.
    """

    packed: frozenset[str] = frozenset()
    computes_in: str = ""
    probe: Callable[[int], NDArray[np.float32] | None]
    passes: OtherPasses | None = None


@dataclass(slots=True, kw_only=True)
class OtherPasses:
    """Passes of a model that is in a process of its own.

    Attributes:
        write_spool: writes activations to files that the model's process reads.
        threads: CPU threads of torch there; 0: as many as it uses.
    """

    scorer: TracedScorer
    outline: ModelOutline
    write_spool: Callable[[ActivationSpool, int], SpoolFiles]
    threads: int = 0

    @property
    def declared(self) -> DeclaredPrecision:
        """How the model's weights are said to be rounded."""
        outline = self.outline
        return DeclaredPrecision(
            source=outline.declared_by, bits=outline.bits, dtypes=frozenset(outline.dtypes)
        )

    def run(
        self,
        label: str,
        sequences: Sequence[ModelInputs],
        visitor: ComparedPass,
        names: Mapping[str, str] | None,
        *,
        wide: bool = False,
        report_step: ReportStep | None = None,
    ) -> ComparedPass:
        """Run the model over all sequences with a visitor that compares, and give it back.

        Args:
            wide: in float32.

        Raises:
            EvaluationError: the model fails.
        """
        spool = visitor.reference
        assert spool is None or isinstance(spool, ActivationSpool)
        assert visitor.rows == 1
        assert visitor.spool is None
        files = [{}] * len(sequences) if spool is None else self.write_spool(spool, len(sequences))
        result = run_passes(
            self.scorer,
            sequences,
            PassCall(
                inputs={},
                number=0,
                last=False,
                names=names,
                reference={},
                forced=visitor.forced is not None,
                wide=wide,
                record="",
                detail=() if visitor.details is None else tuple(visitor.details.patterns),
                heads=0 if visitor.details is None else visitor.details.heads,
                threads=self.threads,
                released=tuple(sorted(visitor.released)),
                apart=visitor.apart,
            ),
            label,
            files=files,
            report_step=report_step,
        )
        _take_over(result, visitor)
        return visitor


def run_passes(
    scorer: TracedScorer,
    sequences: Sequence[ModelInputs],
    each: PassCall,
    label: str,
    *,
    files: SpoolFiles = (),
    report_step: ReportStep | None = None,
) -> PassFound:
    """Run all sequences of a pass; ``each`` says how, ``files`` what each is compared with."""
    result = None
    for number, inputs in enumerate(sequences):
        if report_step is not None:
            report_step(label, number, len(sequences))
        reference = files[number] if files else {}
        last = number == len(sequences) - 1
        result = scorer.run_traced(
            replace(each, inputs=inputs, number=number, last=last, reference=reference)
        )
    if result is None:
        raise EvaluationError("a pass of a traced model ended without a result")
    return result


def record_apart(
    scorer: TracedScorer,
    sequences: Sequence[ModelInputs],
    folder: Path,
    *,
    threads: int,
    report_step: ReportStep | None = None,
) -> SpoolFiles:
    """Record a model's own activations in a folder: ``.npy`` files of each sequence by point."""
    call = PassCall(
        inputs={}, number=0, last=False, names=None, reference={}, forced=False, wide=False,
        record=str(folder), detail=(), heads=0, threads=threads,
    )  # fmt: skip
    result = run_passes(scorer, sequences, call, "recording", report_step=report_step)
    return result.recorded


def write_reference(spool: ActivationSpool, sequences: int, folder: Path) -> SpoolFiles:
    """Write the base's activations to files, for a model in a process of its own.

    Raises:
        EvaluationError: the folder has no room.
    """
    with _room_in(folder, "the base's activations"):
        return [_write_spool(spool, number, folder) for number in range(sequences)]


def _take_over(found: PassFound, visitor: ComparedPass) -> None:
    visitor.events = {event.name: _event(event) for event in found.events}
    visitor.sums = {point: [sums] for point, sums in found.sums.items()}
    visitor.shapes = {shape.point: (shape.base, shape.own) for shape in found.shapes}
    visitor.rounded, visitor.cast = dict(found.rounded), dict(found.cast)
    if found.origin is not None:
        origin = found.origin
        visitor.origin = (_event(origin.point), origin.elements, origin.sequence)
        visitor.origin_at = (origin.place, origin.shape)
    if visitor.details is not None:
        visitor.details.elsewhere = found.details


def _event(told: VisitedPoint) -> PointEvent:
    return PointEvent(told.name, told.module, told.code, told.leaf)


def outline_model(
    scorer: TracedScorer,
    folder: Path,
    said: Mapping[str, Value],
    write_spool: Callable[[ActivationSpool, int], SpoolFiles],
) -> OutlinedModel:
    """Outline a model that is in a process of its own, with its weights, so that it can be traced.

    Args:
        folder: for files, as long as the outline is used.
        said: see ``read_declared``.
        write_spool: writes activations to files that the model's process reads.
    """
    from safetensors.torch import load_file

    outline = scorer.outline(OutlineCall(file=str(folder / "weights.safetensors"), said=said))
    tensors = load_file(outline.file)
    held: dict[str, torch.nn.Parameter] = {}
    modules: dict[str, OutlinedModel] = {}
    for outlined in outline.modules:
        if outlined.same_as:
            module = modules["" if outlined.same_as == ROOT else outlined.same_as]
        else:
            module = _outline_module(outlined, tensors, held)
            module.probe = partial(_probe, scorer, outlined.name, folder / "matrix.npy")
        modules[outlined.name] = module
        parent, _, own = outlined.name.rpartition(".")
        if outlined.name:
            modules[parent]._modules[own] = module
    root = modules[""]
    root.passes = OtherPasses(scorer=scorer, outline=outline, write_spool=write_spool)
    root.computes_in = scorer.trace_support().computes_in
    if outline.attention:
        config: Any = SimpleNamespace(_attn_implementation=outline.attention)
        root.__dict__.update(config=config, set_attn_implementation=_refuse_switch)
    return root


def _outline_module(
    told: OutlinedModule,
    tensors: Mapping[str, torch.Tensor],
    held: dict[str, torch.nn.Parameter],
) -> OutlinedModel:
    # of the same name, which messages tell
    module: OutlinedModel = type(told.kind, (OutlinedModel,), {})()
    for outlined in told.parameters:
        if outlined.tensor not in held:
            held[outlined.tensor] = torch.nn.Parameter(
                tensors[outlined.tensor], requires_grad=False
            )
        module._parameters[outlined.key] = held[outlined.tensor]
    for outlined in told.buffers:
        module.register_buffer(outlined.key, tensors[outlined.tensor], persistent=outlined.stored)
    module.packed = frozenset(o.key for o in (*told.parameters, *told.buffers) if o.packed)
    return module


def _probe(
    scorer: TracedScorer, module: str, file: Path, columns: int
) -> NDArray[np.float32] | None:
    if not scorer.read_linear(LinearCall(module=module, columns=columns, file=str(file))):
        return None
    matrix: NDArray[np.float32] = np.load(file, allow_pickle=False)
    return matrix


def _refuse_switch(implementation: str) -> None:
    raise EvaluationError(f"a model in another process is not switched to {implementation}")
