"""``evalguard tensors A B``: names paired, every pair summed, differences named, and judged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

import evalguard
from evalguard.config.inline_models import is_address, split_model_type
from evalguard.core.hyperparameters import HeldValue, HyperparameterDelta, compare_hyperparameters
from evalguard.core.name_map import Layout, NameAlignment
from evalguard.core.settings import Value
from evalguard.core.tensor_structure import UNKNOWN_DAMAGE, Fault, Likeness
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.checkpoint_files import checkpoint_folder, find_model_type, split_revision
from evalguard.models.config_overrides import is_computed_with, to_json_value
from evalguard.models.hyperparameters_read import (
    flatten_values,
    read_gguf_metadata,
    read_named_values,
)
from evalguard.tensor_files.activation_dumps import is_dump
from evalguard.tensor_files.opening import TensorFiles, open_tensors
from evalguard.tensor_files.packed.row_codec import uses_whole_range, with_shown_levels
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.activation_scales import (
    find_scale_faults,
    list_missing,
    name_scale_differences,
)
from evalguard.tensors.damaged_rows import count_untrained_elements
from evalguard.tensors.exchanged_rows import find_exchanged_rows
from evalguard.tensors.likeness import (
    Description,
    describe_difference,
    describe_layout_fault,
    find_exchanged,
)
from evalguard.tensors.merged_adapters import check_merges
from evalguard.tensors.pair_sums import Extreme, PairSums, SideSums
from evalguard.tensors.rescaled_weights import ChannelFactors, explain_plain, find_rotated
from evalguard.tensors.resized_matrices import ResizedPair, find_resized
from evalguard.tensors.streamed_sums import (
    StoredPair,
    SummedPair,
    default_processes,
    forget_bytes,
    narrow_candidate,
    sum_pairs,
)
from evalguard.tensors.tensor_pairs import (
    StoredOtherwise,
    TiedHead,
    align_names,
    compare_declared_heads,
    find_duplicates,
    find_stored_otherwise,
    find_tied_head,
    name_tied,
    sort_lone,
)
from evalguard.tensors.tensors_report import (
    INVARIANTS,
    DamagedRows,
    DuplicateTensors,
    GreatestDifference,
    InvariantResult,
    Role,
    SideCounts,
    TensorDelta,
    TensorSource,
    TensorsReport,
    TensorState,
    check_invariant,
)
from evalguard.tensors.token_tables import compare_token_tables, read_token_tables
from evalguard.tensors.tolerances import Tolerance, find_tolerance

# What the tensors say themselves, or no forward pass reads.
_SAID_BY_TENSORS = frozenset(
    {
        "dtype", "vocabulary", "hidden_size", "mlp_size", "tied_embeddings",
        "attention_implementation", "pad_token_id", "puts_bos_first",
    }
)  # fmt: skip


def compare_configurations(
    base: TensorFiles, candidate: TensorFiles, duplicates: Sequence[DuplicateTensors]
) -> tuple[HyperparameterDelta, ...]:
    """List where config.json, a GGUF's metadata or the tokenizers differ; () where a side has none.

    Configs of one model type are compared in all that a forward pass may read, others, and GGUF
    files, in what all libraries have. What one side alone says is no difference: it may be a
    default.
    """
    kinds = {side.config.get("model_type") for side in (base, candidate)}
    alike = len(kinds) == 1 and None not in kinds
    held = [list(_read(side, whole=alike)) for side in (base, candidate)]
    rows = [
        row
        for row in compare_hyperparameters(*held)
        if row.verdict == "differs" and row.name not in _SAID_BY_TENSORS and not _is_among(row)
    ]
    tables = [read_token_tables(side) for side in (base, candidate)]
    if any(side.gguf for side in tables):  # a GGUF file has the tokenizer's ends, not the config's
        known = tables[0].named.keys() & tables[1].named.keys()
        rows = [row for row in rows if row.name.removesuffix("_id") not in known]
    head = compare_declared_heads(base, candidate, duplicates)
    return (*rows, *compare_token_tables(*tables), *([] if head is None else [head]))


def _read(side: TensorFiles, *, whole: bool) -> Iterator[HeldValue]:
    if side.kind == "gguf":
        yield from read_gguf_metadata(side.metadata)
        return
    named = read_named_values(side.config, prefix="")
    yield from named
    if whole:
        known = {held.source for held in named}
        for path, value in flatten_values(side.config):
            if path not in known and is_computed_with(path):
                yield HeldValue(name=path, value=to_json_value(value), source=path, common=False)


def _is_among(row: HyperparameterDelta) -> bool:
    """Whether one side has one of several that the other names, as ends of texts."""
    base, candidate = row.base, row.candidate
    if isinstance(base, list) and not isinstance(candidate, list):
        return candidate in base
    return isinstance(candidate, list) and not isinstance(base, list) and base in candidate


# Swapped tensors differ by 1.4 times their norm, in names of one shape: looked for above this.
_UNLIKE = 0.5
# Of all elements: an importance matrix over nine orders of magnitude cuts 0.5% off, and moves the
# scales of 9% of the blocks; a scale of half the size cuts off 17%.
_MOST_CUT, _MOST_SEARCHED = 0.04, 0.2
_GRAPH_TYPES = ("onnx", "openvino")
_FEW = 16  # damaged rows that are kept by number


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOptions:
    """What a comparison of tensors is asked for.

    Attributes:
        name_map: a YAML file; None: equal names, and those of GGUF files.
        rtol, atol: in place of the table's; None: the table's.
        platform, operation: rows of the table of tolerances.
        invariants: names of those that alone are to decide.
        processes: that read and sum; 1: this one, 0: forks of it, where there is much to do.
        progress: called with the number of elements done and that of all.
    """

    name_map: Path | None = None
    rtol: float | None = None
    atol: float | None = None
    platform: str = ""
    operation: str = ""
    invariants: tuple[str, ...] = ()
    processes: int = 1
    command: str = ""
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        """Refuse tolerances that nothing is beyond.

        Raises:
            UsageError: naming the option and the value.
        """
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not 0.0 <= value < math.inf:
                raise UsageError(f"option {name}: {value!r} is not a finite number, 0 or more")


def compare_tensors(base: str, candidate: str, options: TensorOptions) -> TensorsReport:
    """Compare the tensors of two paths.

    Raises:
        UsageError: a path, the name map or an option cannot be used.
        EvaluationError: a file is damaged, the two sides have no tensor in common, or all tensors
            are empty.
    """
    # what damaged scales make of numbers is counted and told
    with ExitStack() as stack, np.errstate(over="ignore", invalid="ignore"):
        sides = [stack.enter_context(_open_side(spec)) for spec in (base, candidate)]
        alignment, scales, notes = align_names(sides[0], sides[1], options.name_map)
        for side in sides:
            _check_elements(side)
        duplicates = (
            *find_duplicates(sides[0].tensors, "base"),
            *find_duplicates(sides[1].tensors, "candidate"),
        )
        head = find_tied_head(sides[0], sides[1], alignment, duplicates)
        added = {head.pair.cand} if head is not None and head.added else set()
        deltas, merges = _compare_pairs(sides[0], sides[1], alignment, scales, head, options)
        otherwise = find_stored_otherwise(sides[0], sides[1], alignment)
        deltas += [_unreadable(sides[0], sides[1], weight, options) for weight in otherwise]
        unread = [delta for delta in deltas if delta.state == "unreadable"]
        known = {*added, *(weight.name for weight in otherwise)}
        lone = sort_lone(sides[0], sides[1], alignment, unread, known)
        missed = list_missing(sides[0], sides[1], scales)
        alone = [n for n in (*scales.base_only, *scales.cand_only) if n not in missed]
        return TensorsReport(
            base=_source(sides[0]),
            candidate=_source(sides[1]),
            deltas=tuple(deltas),
            base_only=(*lone.base, *(n for n in scales.base_only if n in missed)),
            candidate_only=(*lone.candidate, *(n for n in scales.cand_only if n in missed)),
            tied=name_tied(alignment, duplicates),
            ignored=(
                *alignment.ignored,
                *scales.ignored,
                *lone.parts,
                *lone.buffers,
                *alone,
            ),
            duplicates=duplicates,
            scale_faults=find_scale_faults(sides[0], sides[1], scales),
            invariants=_check_invariants(options.invariants, deltas),
            configuration=compare_configurations(sides[0], sides[1], duplicates),
            caveats=(
                *notes,
                *merges,
                *lone.notes,
                *_caveats(sides[0], sides[1], deltas, alone),
            ),
            environment=_environment(),
            command=options.command,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            version=evalguard.__version__,
        )


def _open_side(spec: str) -> TensorFiles:
    """Open what a side names, in the forms that every command takes.

    Raises:
        UsageError, EvaluationError: as ``open_tensors``; for a server, a graph of another library
            or a dump with the command that compares those.
    """
    if is_address(spec):
        raise UsageError(
            f"{spec} is a server, which shows no weights", hint="name the file that it serves"
        )
    _, model = split_model_type(spec, Path.cwd())
    path = Path(model).expanduser()
    if not path.exists():
        path = checkpoint_folder(*split_revision(model)) or path
    try:
        return open_tensors(path if path.exists() else model)
    except (UsageError, EvaluationError) as error:
        kind = find_model_type(path)
        if kind in _GRAPH_TYPES:
            raise UsageError(
                f"{spec} is a graph of {kind}, whose weights are not read",
                hint="evalguard compare takes it, and evalguard trace compares what its nodes "
                "put out",
            ) from error
        if is_dump(path):
            raise UsageError(
                f"{spec} is a folder of dumped outputs, one for each document",
                hint="evalguard compare takes two of them, evalguard trace a model and one; name "
                "the files of one document to compare them as tensors",
            ) from error
        raise


def _unreadable(
    base: TensorFiles, candidate: TensorFiles, one: StoredOtherwise, options: TensorOptions
) -> TensorDelta:
    """Return the delta of a weight that one side stores in parts that are not known."""
    tensor = (candidate if one.of_base else base).tensors[one.name]
    pair = StoredPair(
        name=one.name,
        base=tensor,
        candidate=tensor,
        layout=Layout(),
        tolerance=_choose_tolerance(tensor, tensor, options),
    )
    delta = replace(_unsummed(pair), state="unreadable", fault=one.fault)
    empty = SideCounts(dtype="", shape=())
    return replace(delta, base=empty) if one.of_base else replace(delta, candidate=empty)


def _check_elements(side: TensorFiles) -> None:
    """Refuse tensors without a single element, which would all be identical."""
    if all(0 in tensor.shape for tensor in side.tensors.values()):
        raise EvaluationError(
            f"{side.name} holds no element: the shape of every tensor has a 0",
            hint="shards that were not gathered before they were saved (ZeRO-3) are empty",
        )


def _compare_pairs(
    base: TensorFiles,
    candidate: TensorFiles,
    alignment: NameAlignment,
    scales: NameAlignment,
    head: TiedHead | None,
    options: TensorOptions,
) -> tuple[list[TensorDelta], tuple[str, ...]]:
    """Return all deltas, and what is to be said of an adapter."""
    held = [{**side.tensors, **side.activation_scales} for side in (base, candidate)]
    deltas: dict[str, TensorDelta] = {}
    pairs: list[StoredPair] = []
    resized: dict[str, ResizedPair] = {}
    names = {pair: pair.base for pair in (*alignment.pairs, *scales.pairs)}
    of_scales = {pair.base for pair in scales.pairs}
    if head is not None and head.added:
        names[head.pair] = head.pair.cand  # its base has a delta of its own
    for named, name in names.items():
        ours, theirs = held[0][named.base], held[1][named.cand]
        tolerance = _choose_tolerance(ours, theirs, options)
        if name in of_scales:
            if ours.elements == theirs.elements == 1:  # stored as () by some and as (1,) by others
                theirs = replace(theirs, shape=ours.shape)
            if options.atol is None:
                tolerance = replace(tolerance, atol=0.0)  # a scale is as small as what is allowed
        pair = StoredPair(
            name=name,
            base=ours,
            candidate=theirs,
            layout=named.layout,
            tolerance=tolerance,
        )
        deltas[name] = _unsummed(pair)
        fault = _fault_text(ours, theirs) or _code_fault(ours, theirs)
        if fault:
            deltas[name] = replace(deltas[name], state="unreadable", fault=fault)
            continue
        deltas[name], fitting, resizing = _fit_shapes(pair, deltas[name])
        if resizing is not None:
            resized[name] = resizing
        if fitting is not None:
            pairs.append(fitting)
    for name, delta in _sum_all(pairs, options).items():
        known = resized.get(name)
        deltas[name] = delta if known is None else known.describe(delta, deltas[name])
    merges = check_merges(pairs, deltas)
    deltas |= merges.deltas
    known_scales = [pair for pair in pairs if pair.name in of_scales]
    for name, likeness in name_scale_differences(known_scales, deltas).items():
        deltas[name] = replace(deltas[name], likeness=likeness)
    if head is not None:
        name = names[head.pair]
        deltas[name] = _judge_head(deltas[name], head)
    return [deltas[name] for name in names.values()], merges.notes


def _fit_shapes(
    pair: StoredPair, delta: TensorDelta
) -> tuple[TensorDelta, StoredPair | None, ResizedPair | None]:
    """Return what is to be compared of a pair, without rows that pad its vocabulary.

    Where nothing is, the delta says why.
    """
    named = pair.layout
    try:
        pair = _lend_shape(pair)
        part, layout = narrow_candidate(pair.candidate, named)
        pair = replace(pair, candidate=part, layout=layout)
        wanted = pair.base.shape
        if _moved_shape(pair.candidate, pair.layout) == wanted:
            return delta, pair, None
        resized = find_resized(pair)
    except ValueError as error:
        likeness = describe_layout_fault(pair) if named.changes_nothing else None
        return replace(delta, state="shape", fault=str(error), likeness=likeness), None, None
    except EvaluationError as error:
        return replace(delta, state="unreadable", fault=str(error)), None, None
    if resized is not None and resized.same is not None:
        return delta, resized.same, resized
    likeness = resized.likeness if resized is not None else None
    if likeness is None and named.changes_nothing:
        likeness = describe_layout_fault(pair)
    fault = f"{list(pair.base.shape)} in the base, {list(delta.candidate.shape)} in the candidate"
    moved = "" if pair.layout.changes_nothing else f", {_layout_text(pair.layout)}"
    return replace(delta, state="shape", fault=fault + moved, likeness=likeness), None, None


def _judge_head(delta: TensorDelta, head: TiedHead) -> TensorDelta:
    """Name a head that is not the embedding that the base ties it to."""
    if delta.state != "beyond":
        return delta
    detail = f"the base ties it to {head.embedding}"
    if delta.likeness is not None and delta.likeness.fault is not None:
        detail += f"; beside that it looks like {delta.likeness.words}"
    name: Fault = "stale tied head"
    return replace(delta, likeness=Likeness(kind="structure", name=name, fault=name, detail=detail))


def _sum_all(pairs: Sequence[StoredPair], options: TensorOptions) -> dict[str, TensorDelta]:
    total, done = sum(pair.elements for pair in pairs), 0

    def advance(elements: int) -> None:
        nonlocal done
        done += elements
        if options.progress is not None:
            options.progress(done, total)

    deltas: dict[str, TensorDelta] = {}
    unlike: list[StoredPair] = []
    unknown: list[StoredPair] = []
    alternatives: dict[str, tuple[Likeness, ...]] = {}
    rescaled: dict[str, ChannelFactors] = {}
    processes = options.processes or default_processes(total)
    for summed in sum_pairs(pairs, processes=processes, progress=advance):
        delta, seen = _summed_delta(summed)
        shown = _with_shown_levels(summed.pair, options) if delta.state == "beyond" else None
        if shown is not None:
            (summed,) = sum_pairs([shown])
            delta, seen = _summed_delta(summed)
        if delta.fault == "" and any(
            INVARIANTS[invariant].of_training for invariant in options.invariants
        ):
            untrained = count_untrained_elements(summed.pair, delta.unequal)
            delta = replace(delta, untrained=untrained)
        deltas[delta.name], alternatives[delta.name] = delta, seen.others
        if seen.rescaling is not None:
            rescaled[delta.name] = seen.rescaling
        like = delta.likeness
        if delta.state == "beyond" and (like is None or like.fault in UNKNOWN_DAMAGE):
            unknown.append(summed.pair)
            if like is None and summed.sums.relative_l2 > _UNLIKE:
                unlike.append(summed.pair)
    exchanged = find_exchanged(unlike)
    rows = find_exchanged_rows([pair for pair in unknown if pair.name not in exchanged])
    for name, likeness in rows.items():
        deltas[name] = replace(deltas[name], likeness=likeness, damage=())
    for name, owner in exchanged.items():
        deltas[name] = replace(
            deltas[name],
            likeness=Likeness(
                kind="structure", name="swapped", fault="swapped", detail=f"it is {owner}"
            ),
        )
    for pair in pairs if any(stored.candidate.parts for stored in pairs) else ():
        explained = explain_plain(pair, deltas[pair.name], rescaled, pairs)
        if explained is not None:
            deltas[pair.name] = replace(deltas[pair.name], state="rescaled", likeness=explained)
    for name, likeness in find_rotated(pairs, deltas).items():
        deltas[name] = replace(deltas[name], state="rotated", likeness=likeness)
    return _agree(deltas, alternatives)


def _agree(
    found: dict[str, TensorDelta], others: Mapping[str, tuple[Likeness, ...]]
) -> dict[str, TensorDelta]:
    """Where two explanations are exact, take the one that more tensors have: it is one cause."""
    counts = Counter(delta.likeness.words for delta in found.values() if delta.likeness is not None)
    agreed = dict(found)
    for name, alternatives in others.items():
        own = found[name].likeness
        if own is not None and alternatives:
            best = max((own, *alternatives), key=lambda likeness: counts[likeness.words])
            agreed[name] = replace(found[name], likeness=best)
    return agreed


def _with_shown_levels(pair: StoredPair, options: TensorOptions) -> StoredPair | None:
    """Return a pair to be judged by the levels that its codes show, where nothing tells them."""
    base, candidate = map(with_shown_levels, (pair.base, pair.candidate))
    if base is None and candidate is None:
        return None
    base, candidate = base or pair.base, candidate or pair.candidate
    tolerance = _choose_tolerance(base, candidate, options)
    return replace(pair, base=base, candidate=candidate, tolerance=tolerance)


# Two files that pack alike hold equal numbers; a scale may have been cast to float16.
_SAME_PACKING = Tolerance(
    dtype="float16", rtol=2.0**-10, reason="both sides are packed alike: the numbers are the same"
)


def _choose_tolerance(one: StoredTensor, other: StoredTensor, options: TensorOptions) -> Tolerance:
    formats = [f"{side.dtype} scaled" if side.parts else side.dtype for side in (one, other)]
    alike = one.parts and other.parts and formats[0] == formats[1] and one.packing == other.packing
    if alike and options.rtol is None and options.atol is None:
        return _SAME_PACKING
    tolerance = _tolerance((formats[0], formats[1]), options)
    rounding = max(one.rounding, other.rounding)
    if not rounding or tolerance.snr is not None or options.atol is not None:
        return tolerance
    return replace(tolerance, atol=tolerance.atol + rounding)


def _tolerance(dtypes: tuple[str, str], options: TensorOptions) -> Tolerance:
    table = find_tolerance(dtypes, platform=options.platform, operation=options.operation)
    if options.rtol is None and options.atol is None:
        return table
    return replace(
        table,
        rtol=options.rtol or 0.0,
        atol=options.atol or 0.0,
        snr=None,
        reason="as was asked for",
    )


def _unsummed(pair: StoredPair) -> TensorDelta:
    return TensorDelta(
        name=pair.name,
        candidate_name=pair.candidate.name,
        state="identical",
        base=SideCounts(dtype=pair.base.dtype, shape=pair.base.shape),
        candidate=SideCounts(dtype=pair.candidate.dtype, shape=pair.candidate.shape),
        tolerance=pair.tolerance,
        role=_role(pair.name),
        elements=pair.elements,
        layout=", ".join(filter(None, (pair.candidate.packing, _layout_text(pair.layout)))),
    )


def _summed_delta(summed: SummedPair) -> tuple[TensorDelta, Description]:
    """Return a pair's delta, and what its difference looks like."""
    pair, sums = summed.pair, summed.sums
    delta = _unsummed(pair)
    if summed.fault:
        return replace(delta, state="unreadable", fault=summed.fault), Description()
    state = _state(pair, sums)
    seen = Description()
    if sums.greatest_abs.value > 0.0 or state == "beyond":
        try:
            seen = describe_difference(summed, beyond=state == "beyond")
        except (EvaluationError, ValueError) as error:  # changed while it was read
            return replace(delta, state="unreadable", fault=str(error)), seen
        finally:
            forget_bytes(pair.base, pair.candidate)
    if sums.beyond and state == "within" and not seen.sound:
        state = "beyond"
    if seen.rescaling is not None and not seen.damage:
        state = "rescaled"
    shape = pair.base.shape
    delta = replace(
        delta,
        state=state,
        base=_counts(delta.base, sums.base),
        candidate=_counts(delta.candidate, sums.candidate),
        unequal=sums.unequal,
        mismatched=sums.mismatched,
        sign_disagreements=sums.sign_flips,
        zero_on_one_side=sums.zero_on_one_side,
        greatest_absolute=_greatest(sums.greatest_abs, shape),
        greatest_relative=_greatest(sums.greatest_rel, shape),
        mismatched_absolute=_greatest(sums.mismatched_abs, shape),
        mismatched_relative=_greatest(sums.mismatched_rel, shape),
        relative_l2=sums.relative_l2,
        cosine=sums.cosine,
        snr=sums.snr,
        beyond_format=sums.beyond,
        beyond_blocks=sums.beyond_blocks,
        damage=tuple(
            DamagedRows(
                fault=damaged.fault,
                detail=damaged.detail,
                rows=len(damaged.rows),
                first=damaged.rows[:_FEW],
                blocks=damaged.blocks,
            )
            for damaged in seen.damage
        ),
        likeness=seen.likeness,
    )
    return delta, seen


def _state(pair: StoredPair, sums: PairSums) -> TensorState:
    if not sums.unequal:
        same = pair.base.dtype == pair.candidate.dtype and pair.lies_alike
        return "identical" if same else "equal"
    least = pair.tolerance.snr
    if least is None:
        return "beyond" if sums.mismatched else "within"
    broken = sums.base.nans + sums.base.infs + sums.candidate.nans + sums.candidate.infs
    if broken:
        return "beyond"
    if sums.cut > _MOST_CUT * sums.elements or sums.searched > _MOST_SEARCHED * sums.elements:
        return "beyond"
    if sums.snr is None or sums.snr >= least:
        return "within"
    # one element may have made the scale of a whole row: then its format keeps no more
    # whether elements beyond their format are damage is said by their blocks
    bounded = pair.candidate.parts and pair.is_bounded
    return "within" if bounded and uses_whole_range(pair.candidate) else "beyond"


def _counts(side: SideCounts, sums: SideSums) -> SideCounts:
    return replace(side, zeros=sums.zeros, nans=sums.nans, infs=sums.infs, total=sums.total)


def _greatest(extreme: Extreme, shape: tuple[int, ...]) -> GreatestDifference | None:
    if extreme.index < 0 or extreme.value == 0.0:
        return None
    index = np.unravel_index(extreme.index, shape) if shape else ()
    return GreatestDifference(value=extreme.value, index=tuple(int(at) for at in index))


def _moved_shape(tensor: StoredTensor, layout: Layout) -> tuple[int, ...]:
    """Return the candidate's shape once its layout is undone.

    Raises:
        ValueError: it cannot be.
    """
    if layout.changes_nothing:
        return tensor.shape
    # a view of one element in that shape: numpy works out the rest
    moved = layout.view(np.broadcast_to(np.zeros(1, dtype=np.bool_), tensor.shape))
    layout.indices(moved.shape)
    return moved.shape


def _fault_text(one: StoredTensor, other: StoredTensor) -> str:
    return "; ".join(
        f"{side}, {tensor.file}: {tensor.fault}"
        for side, tensor in (("base", one), ("candidate", other))
        if tensor.fault
    )


def _code_fault(one: StoredTensor, other: StoredTensor) -> str:
    """Say which side holds bare codes of a weight that the other holds as numbers: such codes are
    packed in a way that is not known, or have lost their scale, and say nothing alone."""
    for side, tensor, numbers in (("base", one, other), ("candidate", other, one)):
        if (
            tensor.dtype.startswith(("int", "uint"))
            and not tensor.parts
            and len(tensor.shape) > 1
            and (numbers.parts or numbers.dtype.startswith(("float", "bfloat")))
        ):
            return (
                f"{side}, {tensor.file}: it is stored as {tensor.dtype} {list(tensor.shape)}, with "
                "no scale beside it that evalguard knows"
            )
    return ""


def _lend_shape(pair: StoredPair) -> StoredPair:
    """Give a side whose file does not say in which shape its elements are that of the other."""
    base, candidate = pair.base, pair.candidate
    if base.elements != candidate.elements or base.shape_known == candidate.shape_known:
        return pair
    if base.shape_known:
        return replace(pair, candidate=replace(candidate, shape=base.shape, shape_known=True))
    return replace(pair, base=replace(base, shape=candidate.shape, shape_known=True))


def _layout_text(layout: Layout) -> str:
    parts = []
    if layout.take is not None:
        parts.append(f"slice {layout.take.index}")
    if layout.split is not None:
        parts.append(f"part {layout.split.index}")
    if layout.reshape:
        parts.append("reshaped")
    if layout.transpose:
        parts.append("transposed")
    parts += [
        f"{permutation.heads} heads permuted" if permutation.heads else "permuted"
        for permutation in layout.permute
    ]
    if layout.scale != 1.0:
        parts.append(f"times {layout.scale:g}")
    if layout.add:
        parts.append(f"{layout.add:+g}")
    return ", ".join(parts)


_SCALES = ("scale", "scales", "absmax", "scb", "scale_inv", "input_scale", "weight_scale")
_ZEROS = ("zero_point", "zeros", "qzeros", "zero")


def _role(name: str) -> Role:
    """Tell scales and zero points of a quantised tensor by their names, as torchao,
    compressed-tensors, bitsandbytes and GPTQ write them."""
    last = name.rpartition(".")[2].lower()
    if last.endswith(_ZEROS):
        return "zero point"
    return "scale" if last.endswith(_SCALES) else "tensor"


def _source(side: TensorFiles) -> TensorSource:
    return TensorSource(
        name=side.name,
        kind=side.kind,
        files=tuple(file.name for file in side.files),
        tensors=len(side.tensors),
        nbytes=side.nbytes,
        architecture=side.architecture,
    )


def _check_invariants(
    names: Sequence[str], deltas: Sequence[TensorDelta]
) -> tuple[InvariantResult, ...]:
    readable = [delta for delta in deltas if delta.state not in ("unreadable", "shape")]
    return tuple(check_invariant(name, readable) for name in names)


def _caveats(
    base: TensorFiles,
    candidate: TensorFiles,
    deltas: Sequence[TensorDelta],
    scales: Sequence[str],
) -> list[str]:
    caveats = [*base.notes, *candidate.notes]
    if scales:
        count = len(scales)
        caveats.append(
            f"{count:,} scale{'s' if count > 1 else ''} of activations or caches, which no weight "
            f"has, of one side alone: first {scales[0]}"
        )
    models = (base.architecture, candidate.architecture)
    if base.kind == candidate.kind and all(models) and models[0] != models[1]:
        caveats.append(f"the base is a {models[0]}, the candidate a {models[1]}")
    padded: dict[int, list[TensorDelta]] = {}
    for delta in deltas:
        if delta.rows_appended:
            padded.setdefault(delta.rows_appended, []).append(delta)
    for count, of_one in padded.items():
        rows = f"{count:,} row{'s' if count > 1 else ''}"
        sizes = f"{of_one[0].candidate.shape[0]:,} for {of_one[0].base.shape[0]:,}"
        caveats.append(
            f"{rows} appended to {', '.join(delta.name for delta in of_one)}: a padded vocabulary "
            f"({sizes}), of which the rows that both have were compared"
        )
    for side in ("base", "candidate"):
        broken = [d for d in deltas if getattr(d, side).nans or getattr(d, side).infs]
        if broken:
            nans, infs = (
                sum(getattr(getattr(d, side), kind) for d in broken) for kind in ("nans", "infs")
            )
            caveats.append(
                f"the {side} has {nans:,} NaN and {infs:,} infinite elements in {len(broken)} "
                f"tensor{'s' if len(broken) > 1 else ''}, first {broken[0].name}"
            )
    return caveats


def _environment() -> Mapping[str, Value]:
    return {"evalguard": evalguard.__version__, "numpy": np.__version__}
