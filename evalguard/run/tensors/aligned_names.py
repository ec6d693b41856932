"""Which names of two checkpoints belong together: by the user's map, or by what the forms of their
files say."""

from __future__ import annotations

from pathlib import Path

from evalguard.core.tensors.name_map import NameAlignment, NameMap, NameRule
from evalguard.core.tensors.name_prefixes import find_name_prefixes
from evalguard.errors import EvaluationError
from evalguard.run.tensors.activation_scales import align_scales
from evalguard.store.name_map_file import read_name_map
from evalguard.store.tensor_files import TensorFiles
from evalguard.store.tensor_files.gguf_names import map_gguf_names
from evalguard.store.tensor_files.mlx_names import map_mlx_experts
from evalguard.store.tensor_files.torch_files import BARE_TENSOR


def align_names(
    base: TensorFiles, candidate: TensorFiles, name_map: Path | None
) -> tuple[NameAlignment, NameAlignment, tuple[str, ...]]:
    """Pair the names of both sides, those of their scales of activations and caches apart, and say
    what had to be taken off for that.

    Raises:
        UsageError: the name map cannot be used.
        EvaluationError: no name belongs to both.
    """
    names = _build_name_map(name_map, base, candidate)
    alignment = names.align(base.tensors, candidate.tensors)
    scales = align_scales(base, candidate, names)
    if name_map is None:
        common = len(alignment.pairs)
        prefixes = find_name_prefixes(base.tensors, candidate.tensors, common)
        if prefixes is not None:
            alignment = prefixes.name_map.align(base.tensors, candidate.tensors)
            return alignment, scales, (prefixes.note,)
    if not alignment.pairs:
        raise _nothing_common(base, candidate)
    return alignment, scales, ()


def _build_name_map(path: Path | None, base: TensorFiles, candidate: TensorFiles) -> NameMap:
    """Return the user's map, or what the forms of the files say."""
    if path is not None:
        return read_name_map(path)
    if candidate.kind == "gguf" and base.kind != "gguf":
        return map_gguf_names(
            base.tensors, candidate.tensors, candidate.metadata, gguf_is_base=False
        )
    if base.kind == "gguf" and candidate.kind != "gguf":
        return map_gguf_names(candidate.tensors, base.tensors, base.metadata, gguf_is_base=True)
    if len(base.tensors) == len(candidate.tensors) == 1 and _has_nameless(base, candidate):
        return _pair_single(next(iter(base.tensors)), next(iter(candidate.tensors)))
    return map_mlx_experts(candidate.tensors)


def _has_nameless(*sides: TensorFiles) -> bool:
    """Whether a side's only tensor has no name in its file: npy, or torch's tensor without one."""
    return any(
        side.kind == "npy" or (side.kind == "torch" and [*side.tensors] == [BARE_TENSOR])
        for side in sides
    )


def _pair_single(base: str, candidate: str) -> NameMap:
    """Two files of one tensor each are about that tensor, where one of them does not name it."""
    wild = {"*", "?"} & {*base, *candidate}
    return NameMap() if wild else NameMap(rules=(NameRule(base=base, cand=candidate),))


def _nothing_common(base: TensorFiles, candidate: TensorFiles) -> EvaluationError:
    examples = [", ".join(list(side.tensors)[:3]) for side in (base, candidate)]
    models = [side.architecture for side in (base, candidate)]
    other = f" ({models[0]} and {models[1]})" if all(models) and models[0] != models[1] else ""
    return EvaluationError(
        f"{base.name} and {candidate.name} have no tensor name in common{other}, so nothing was "
        f"compared: the base has {len(base.tensors):,} ({examples[0]} ...), the candidate "
        f"{len(candidate.tensors):,} ({examples[1]} ...)",
        hint="say with --map FILE which names belong together; docs/tensors.md has the format",
    )
