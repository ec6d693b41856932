"""Output heads of models that tie them to the embedding: compared with what they are tied to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalguard.core.reports.tensors_report import DuplicateTensors
from evalguard.core.tensors.name_map import NameAlignment, NamePair
from evalguard.store.tensor_files import StoredTensor, TensorFiles

_HEADS = ("lm_head.weight", "embed_out.weight")  # how names end; GGUF's is the whole name
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "token_embd.weight")
_BIASES = ("lm_head.bias", "embed_out.bias")


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


def _find(tensors: Mapping[str, StoredTensor]) -> tuple[str | None, str | None]:
    """Return the names of a model's output head and of its embedding."""
    head = next((n for n in tensors if n.endswith(_HEADS) or n == "output.weight"), None)
    return head, next((n for n in tensors if n.endswith(_EMBEDDINGS)), None)


def _same(
    names: tuple[str | None, str | None], side: str, duplicates: Sequence[DuplicateTensors]
) -> bool:
    return any(one.side == side and {*names} <= {*one.names} for one in duplicates)
