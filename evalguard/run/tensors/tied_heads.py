"""Output heads of models that tie them to the embedding: compared with what they are tied to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalguard.core.reports.tensors_report import DuplicateTensors
from evalguard.core.reports.trace_report import HyperparameterDelta
from evalguard.core.tensors.name_map import NameAlignment, NamePair
from evalguard.store.tensor_files import StoredTensor, TensorFiles

_HEADS = ("lm_head.weight", "embed_out.weight")  # how names end; GGUF's is the whole name
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "token_embd.weight")
_BIASES = ("lm_head.bias", "embed_out.bias")
# Architectures that end in an output head, by parts of their names.
_SPEAKING = ("CausalLM", "LMHead", "ConditionalGeneration")
_NOT_STORED = "untied, and none is stored"
_NOT_USED = "tied, and another one is stored"
_UNFIT = {_NOT_STORED, _NOT_USED}


def is_of_vocabulary(name: str) -> bool:
    """Whether a tensor has a row for each token: an embedding, an output head or its bias."""
    return name.endswith((*_HEADS, *_EMBEDDINGS, *_BIASES)) or name == "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedHead:
    """A head that the candidate stores and the base ties to its embedding.

    Attributes:
        pair: what is compared; ``added``: the base stores no head, so that its embedding is the
            one that the candidate's head has to be.
    """

    pair: NamePair
    embedding: str
    added: bool


def find_tied_head(
    base: TensorFiles,
    candidate: TensorFiles,
    alignment: NameAlignment,
    duplicates: Sequence[DuplicateTensors],
) -> TiedHead | None:
    """Return the candidate's head where the base ties it, and the candidate stores it apart."""
    ours, theirs = (_find(side.tensors) for side in (base, candidate))
    if ours[1] is None or theirs[0] is None or _same(theirs, "candidate", duplicates):
        return None
    embedding, head = ours[1], theirs[0]
    if ours[0] is None:
        # its vocabulary may be padded
        alike = base.tensors[embedding].shape[1:] == candidate.tensors[head].shape[1:]
        if head not in alignment.cand_only or not alike:
            return None
        return TiedHead(pair=NamePair(base=embedding, cand=head), embedding=embedding, added=True)
    pair = next((one for one in alignment.pairs if one.base == ours[0]), None)
    if pair is None or pair.cand != head or not _same(ours, "base", duplicates):
        return None
    return TiedHead(pair=pair, embedding=embedding, added=False)


def compare_declared_heads(
    base: TensorFiles, candidate: TensorFiles, duplicates: Sequence[DuplicateTensors]
) -> HyperparameterDelta | None:
    """Say where a config does not fit the output head that is stored: an untied model without one
    gets a random head, and one that is tied leaves a stored head out."""
    heads = [
        _declared_head(side, [one for one in duplicates if one.side == name])
        for name, side in (("base", base), ("candidate", candidate))
    ]
    if heads[0] == heads[1] or not _UNFIT & {*heads}:
        return None
    return HyperparameterDelta(
        name="output_head", base=heads[0], candidate=heads[1], verdict="differs",
        base_source="tie_word_embeddings", candidate_source="tie_word_embeddings",
    )  # fmt: skip


def _declared_head(side: TensorFiles, duplicates: Sequence[DuplicateTensors]) -> str:
    head, embedding = _find(side.tensors)
    text = side.config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    tied = side.config.get("tie_word_embeddings", inner)
    if head is None or embedding is None:
        speaks = any(one in side.architecture for one in _SPEAKING)
        lost = tied is False and speaks and embedding is not None
        return _NOT_STORED if lost else "tied to the embedding"
    one, other = side.tensors[head], side.tensors[embedding]
    alike = any({head, embedding} <= {*group.names} for group in duplicates)
    if tied is True and not alike and (one.dtype, one.shape) == (other.dtype, other.shape):
        return _NOT_USED
    return "tied to the embedding" if tied is True else "stored"


def _find(tensors: Mapping[str, StoredTensor]) -> tuple[str | None, str | None]:
    """Return the names of a model's output head and of its embedding."""
    head = next((n for n in tensors if n.endswith(_HEADS) or n == "output.weight"), None)
    return head, next((n for n in tensors if n.endswith(_EMBEDDINGS)), None)


def _same(
    names: tuple[str | None, str | None], side: str, duplicates: Sequence[DuplicateTensors]
) -> bool:
    return any(one.side == side and {*names} <= {*one.names} for one in duplicates)
