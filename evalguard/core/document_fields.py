"""DocumentFields: what a task's documents say about which of them belong together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# Longer texts (whole passages) are known by their digest.
_LONGEST_LABEL = 64
_DEEPEST = 3
# Names under which tasks keep what several questions are about.
_SHARED = frozenset(
    {
        "article", "article_id", "context", "context_id", "conversation_id", "dialogue_id",
        "document_id", "group", "group_id", "paragraph", "paragraph_id", "passage", "passage_id",
        "source_id", "story", "story_id",
    }
)  # fmt: skip
# A field that so many documents share on average is a category rather than a passage.
_LARGEST_MEAN = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFields:
    """Texts and whole numbers in the documents of one task.

    Attributes:
        n: documents.
        labels: field -> doc_id -> label; equal labels, equal values. A field of a field is dotted
            ("idx.paragraph").
        of_first: the fields of one document, where ``labels`` are read when they are asked for;
            None: look there.
    """

    n: int = 0
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    of_first: tuple[str, ...] | None = None

    def likely_cluster(self) -> str:
        """A field that documents probably share, "" where none looks like it.

        Conservative: it has a name under which tasks keep passages, every document has it, and it
        is the same in 2 to 50 documents on average. Of several the one with most values.
        """
        names = self.labels if self.of_first is None else self.of_first
        found = [
            (self.count(name), name)
            for name in names
            if name.rpartition(".")[2].lower() in _SHARED and len(self.labels[name]) == self.n
        ]
        plausible = [
            (count, name)
            for count, name in found
            if count > 1 and 2.0 <= self.n / count <= _LARGEST_MEAN
        ]
        return max(plausible)[1] if plausible else ""

    def count(self, name: str) -> int:
        """How many values a field has."""
        return len(set(self.labels[name].values()))


def read_fields(documents: Mapping[int, object]) -> DocumentFields:
    """Read the fields of documents by doc_id; of what is not a mapping there are none."""
    return DocumentFields(n=len(documents), labels=read_labels(documents.items()))


def read_labels(documents: Iterable[tuple[int, object]]) -> dict[str, dict[int, str]]:
    """Field -> doc_id -> label, of (doc_id, document)."""
    labels: dict[str, dict[int, str]] = {}
    for doc_id, document in documents:
        for name, label in _labels(document):
            labels.setdefault(name, {})[doc_id] = label
    return labels


def _labels(value: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for name, inner in value.items():
            if isinstance(name, str):
                yield from _labels(inner, f"{prefix}.{name}" if prefix else name, depth + 1)
    elif prefix and isinstance(value, (str, int)) and not isinstance(value, bool):
        text = str(value)
        if len(text) > _LONGEST_LABEL:
            text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        yield prefix, text
