"""What stands beside the tensors: the same ones make another model with another configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalguard.core.reports.tensors_report import DuplicateTensors
from evalguard.core.reports.trace_report import HyperparameterDelta
from evalguard.core.tracing.hyperparameters import HeldValue, compare_hyperparameters
from evalguard.models.config_comparison import is_computed_with, to_json_value
from evalguard.models.tracing.read_hyperparameters import (
    flatten_values,
    read_gguf_metadata,
    read_named_values,
)
from evalguard.run.tensors.tied_heads import compare_declared_heads
from evalguard.run.tensors.token_tables import compare_token_tables, read_token_tables
from evalguard.store.tensor_files.opening import TensorFiles

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
        known = {one.source for one in named}
        for path, value in flatten_values(side.config):
            if path not in known and is_computed_with(path):
                yield HeldValue(name=path, value=to_json_value(value), source=path, common=False)


def _is_among(row: HyperparameterDelta) -> bool:
    """Whether one side has one of several that the other names, as ends of texts."""
    one, other = row.base, row.candidate
    if isinstance(one, list) and not isinstance(other, list):
        return other in one
    return isinstance(other, list) and not isinstance(one, list) and one in other
