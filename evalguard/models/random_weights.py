"""What transformers reports while it reads a checkpoint into a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.errors import EvaluationError


class RecordingLoader:
    """Stands in for an auto class while it loads, and keeps what transformers reports."""

    def __init__(self, loader: Any, reports: list[dict[str, Any]]) -> None:
        self._loader = loader
        self._reports = reports

    def from_pretrained(self, *names: Any, **arguments: Any) -> Any:
        """Load, and keep the report: missing, unexpected and mismatched keys."""
        # Mismatched shapes are refused with their names; transformers would not name them.
        arguments["ignore_mismatched_sizes"] = True
        model, report = self._loader.from_pretrained(*names, **arguments, output_loading_info=True)
        self._reports.append(report)
        return model


class MisfitError(EvaluationError):
    """Weights of a model are not in its checkpoint, or in another shape: ``weights``, by name."""

    def __init__(self, message: str, *, hint: str, weights: Sequence[str]) -> None:
        super().__init__(message, hint=hint)
        self.weights = tuple(weights)


def refuse_random_weights(pretrained: str, report: Mapping[str, Any]) -> None:
    """Refuse a model with weights that its checkpoint does not have.

    transformers only warns, and fills them with random numbers.

    Raises:
        MisfitError: naming the first of them, and what usually makes such tensors missing.
    """
    mismatched = report.get("mismatched_keys") or ()
    other_shapes = sorted(_describe_key(key) for key in mismatched)
    if other_shapes:
        raise MisfitError(
            f"{pretrained} has other shapes for {len(other_shapes)} of the model's weights "
            f"({_name_some(other_shapes)})",
            hint="the sizes in config.json do not fit these weights",
            weights=[key if isinstance(key, str) else key[0] for key in mismatched],
        )
    missing = sorted(str(key) for key in report.get("missing_keys") or ())
    if missing:
        left_over = sorted(str(key) for key in report.get("unexpected_keys") or ())
        raise MisfitError(
            f"{pretrained} lacks {len(missing)} of the model's weights ({_name_some(missing)})",
            hint=_explain_missing(missing, left_over),
            weights=missing,
        )


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_HEADS = ("lm_head", "embed_out", "output", "score")  # as modelling files call an output layer


def _explain_missing(missing: Sequence[str], left_over: Sequence[str]) -> str:
    """Say what tensors that a checkpoint does not hold usually mean.

    Args:
        missing: names that the model wants. left_over: names in the files that it does not want.
    """
    prefixes = _compare_prefixes(missing, left_over)
    if prefixes:
        stored, wanted = prefixes
        return (
            f"the files hold tensors of these names, but with {stored} where the model has "
            f"{wanted}: rename them, or save the checkpoint again from the model's own class"
        )
    if left_over:
        return (
            f"the files hold {len(left_over)} tensors that the model does not have "
            f"({_name_some(left_over)}): tensors were renamed, or the architecture in config.json "
            "is another one"
        )
    if all(name.split(".")[-2:-1] and name.split(".")[-2] in _HEADS for name in missing):
        return (
            "the output layer is missing from the files: one that is tied to the embedding is not "
            "saved, and then config.json has to say tie_word_embeddings: true; else save it too"
        )
    layers = {int(found[1]) for name in missing if (found := _LAYER.search(name))}
    whole = all(_LAYER.search(name) for name in missing)
    if whole and len(missing) > 4 * len(layers):
        first, last = min(layers), max(layers)
        shown = f"layer {first}" if first == last else f"layers {first} to {last}"
        return (
            f"all of {shown} is missing from the files: a shard was left out of the checkpoint or "
            "of its index, or config.json counts more layers than there are"
        )
    return (
        "the files hold no such tensors: they were lost when the checkpoint was written (a shard "
        "left out, a filter on names); write it again with all tensors"
    )


def _compare_prefixes(missing: Sequence[str], left_over: Sequence[str]) -> tuple[str, str] | None:
    """Where one renamed beginning explains most missing names: as stored, and as wanted."""
    stored = set(left_over)
    for name in missing:
        parts = name.split(".")
        for cut in range(len(parts) - 1):
            end, own = ".".join(parts[cut:]), ".".join(parts[:cut])
            for other in left_over:
                if other != end and not other.endswith(f".{end}"):
                    continue
                theirs = other.removesuffix(end).removesuffix(".")
                renamed = sum(
                    _with_prefix(one, own, theirs) in stored
                    for one in missing
                    if own == "" or one.startswith(f"{own}.")
                )
                if theirs != own and 2 * renamed > len(missing):
                    return tuple(f"'{one}.'" if one else "no prefix" for one in (theirs, own))  # type: ignore[return-value]
    return None


def _with_prefix(name: str, own: str, other: str) -> str:
    rest = name.removeprefix(f"{own}.") if own else name
    return f"{other}.{rest}" if other else rest


def _describe_key(key: Any) -> str:
    """A missing key's name; a mismatched one's with both shapes."""
    if isinstance(key, str):
        return key
    name, stored, wanted = key
    return f"{name}: {list(stored)} stored, {list(wanted)} in the model"
