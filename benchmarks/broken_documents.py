"""How far healthy ports are from a broken document, and whether planted ones are found.

``python -m benchmarks.broken_documents [--output FILE]`` scores what documents ask for (last words,
right options, whole paragraphs) with the demo's model and a trained one, and with copies of both in
other precisions. Of each copy it gives the documents that would be called broken, with the tokens
known and with the texts alone, and the largest *reach*: of a document the smaller of the nats a
token below chance and below the base, so that it is broken above 10.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.output import deliver
from evalguard.core.broken_documents import BELOW_CHANCE, AskedText

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]
_CONTEXT, _BATCH = 24, 64
# of the others' documents the demo's model is asked every eighth
_OF_DEMO = 8
# characters of a paragraph, how many, and documents of each planted kind
_PARAGRAPH, _PARAGRAPHS, _PLANTED = 80, 1_000, 40
# levels of a normal float of 4 bits (Dettmers et al. 2023, appendix E)
_NF4 = (
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Document:
    """What is asked: a text after a context, "" for a whole text."""

    context: str
    text: str


def main() -> None:
    """Measure, and deliver the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared-data", type=Path,
                        default=os.environ.get("EVALGUARD_SHARED_DATA", ROOT.parent / "shared/data"))  # fmt: skip # noqa: E501
    parser.add_argument("--limit", type=int, default=0, help="Documents of each kind; 0: all.")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    deliver(report(given.shared_data, given.limit), given.output)


def report(data: Path, limit: int) -> Iterator[str]:
    """The page's lines."""
    own, others = list(demo_documents(limit)), list(shared_documents(data, limit))
    asked = {
        "demo": (ROOT / "demo/model", [*own, *others[::_OF_DEMO]]),
        "stories260K": (data / "stories260K/hf", [*own, *others]),
    }
    yield "# Broken documents: healthy ports, and planted ones"
    yield ""
    yield (
        "`python -m benchmarks.broken_documents`: last words of the demo, of TinyStories and of "
        "LAMBADA, right options of the demo and of ARC-easy, beginnings of WikiText-2's "
        f"paragraphs; contexts cut to the last {_CONTEXT} tokens, float32 on a CPU as base. The "
        "demo's model is asked all of its own documents and a part of the others, most of whose "
        "words it has never seen."
    )
    yield ""
    yield (
        "*reach*: the largest that any document has of the smaller of two numbers, the nats a "
        "token below a uniform guess and below the base. A document is broken above "
        f"{BELOW_CHANCE:g}. *estimated*: as in a finished run, without token counts and "
        "vocabulary."
    )
    yield ""
    yield (
        "| model | documents | port | drift, nats a document | broken, tokens known "
        "| broken, estimated | reach, known | reach, estimated |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    with ProcessPoolExecutor() as pool:
        measured = list(pool.map(_measure, asked, *zip(*asked.values(), strict=True)))
    for one in measured:
        yield from one.rows
    planted = sum(one.planted for one in measured)
    yield ""
    yield (
        f"Planted: {planted} documents, half of which lose 80 nats a token, and half of which are "
        f"minus infinity in one: {sum(one.found['known'] for one in measured)} found with the "
        f"tokens known, {sum(one.found['estimated'] for one in measured)} with the texts alone."
    )
    yield ""
    lowest = ", ".join(f"{one.model} {one.lowest:+.2f}" for one in measured)
    yield (
        f"The base's own lowest mean, in nats a token beside a uniform guess: {lowest}. Nothing is "
        "known of a document where both models are below -30."
    )
    yield ""
    yield (
        "Two bits ruin the smaller model. Its vocabulary has 512 tokens, so that a text has about "
        "three times as many as is estimated for a large one: only there the bound is crossed."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model: its rows, how many documents were planted and found, its base's lowest mean."""

    model: str
    rows: tuple[str, ...]
    planted: int
    found: Mapping[str, int]
    lowest: float


def _measure(name: str, folder: Path, documents: Sequence[Document]) -> Measured:
    model, tokenizer = _load(folder)
    vocabulary = int(model.config.vocab_size)
    base = _score(model, tokenizer, documents)
    rows = []
    for port, convert in PORTS.items():
        scores = _score(convert(copy.deepcopy(model)), tokenizer, documents)
        asked = _asked(documents, base, scores, vocabulary)
        drift = float(np.mean([a[0] - b[0] for a, b in zip(base, scores, strict=True)]))
        broken = [sum(one.broken is not None for one in asked[kind]) for kind in asked]
        reach = [max(map(_reach, asked[kind])) for kind in asked]
        rows.append(
            f"| {name} | {len(documents):,} | {port} | {drift:+.3f} | {broken[0]} | {broken[1]} "
            f"| {reach[0]:.2f} | {reach[1]:.2f} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    planted = _plant(documents, base, vocabulary)
    return Measured(
        model=name,
        rows=tuple(rows),
        planted=len(planted["known"]),
        found={k: sum(one.broken == "candidate" for one in ones) for k, ones in planted.items()},
        lowest=min(total / count for total, count in base) + math.log(vocabulary),
    )


# What is asked.


def demo_documents(limit: int) -> Iterator[Document]:
    """Last words and right options of the demo's tasks."""
    for row in _rows(ROOT / "tasks/data/evalguard_lastword.jsonl.gz", limit):
        yield _last_word(row["text"])
    for row in _rows(ROOT / "tasks/data/evalguard_choice.jsonl.gz", limit):
        yield Document(row["context"], " " + row["choices"][row["gold"]])


def shared_documents(data: Path, limit: int) -> Iterator[Document]:
    """Last words, right options and paragraphs of real data."""
    for row in _rows(data / "stories260K/tinystories_lastword.jsonl", limit):
        yield _last_word(row["text"])
    for row in _rows(data / "lambada/lambada_openai.jsonl", limit):
        yield Document(row["context"], " " + row["continuation"])
    for row in _rows(data / "multiple_choice/arc_easy.jsonl", limit):
        yield Document(row["query"], " " + row["choices"][row["gold"]])
    lines = (data / "wikitext2/wiki.test.raw").read_text(encoding="utf-8").splitlines()
    long = [line.strip() for line in lines if len(line) > 200]
    for line in long[: limit or _PARAGRAPHS]:
        yield Document("", line[:_PARAGRAPH])


def _rows(path: Path, limit: int) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file][: limit or None]


def _last_word(text: str) -> Document:
    context, _, word = text.rpartition(" ")
    return Document(context, f" {word}")


# What a model gives it.


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def _score(model: Any, tokenizer: Any, documents: Sequence[Document]) -> list[tuple[float, int]]:
    """Log-likelihood and number of the scored tokens of each document."""
    import torch

    encoded = [_encode(tokenizer, one) for one in documents]
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place][0]))
    found: list[tuple[float, int]] = [(0.0, 1)] * len(encoded)
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        width = max(len(encoded[place][0]) for place in places)
        ids = torch.zeros((len(places), width), dtype=torch.long)
        for row, place in enumerate(places):
            ids[row, : len(encoded[place][0])] = torch.tensor(encoded[place][0])
        with torch.inference_mode():
            logits = model(ids).logits
            for row, place in enumerate(places):
                tokens, scored = encoded[place]
                own = logits[row, len(tokens) - scored - 1 : len(tokens) - 1].float()
                wanted = torch.tensor(tokens[-scored:])[:, None]
                values = torch.log_softmax(own, dim=-1).gather(1, wanted)
                found[place] = float(values.double().sum()), scored
    return found


def _encode(tokenizer: Any, document: Document) -> tuple[list[int], int]:
    """Token ids with BOS before them, and how many of the last are scored."""
    text = tokenizer.encode(document.text, add_special_tokens=False) or [0]
    before = tokenizer.encode(document.context, add_special_tokens=False)[-_CONTEXT:]
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else 1
    return [first, *before, *text], len(text)


def _asked(
    documents: Sequence[Document],
    base: Sequence[tuple[float, int]],
    candidate: Sequence[tuple[float, int]],
    vocabulary: int,
) -> dict[str, list[AskedText]]:
    """What both gave every document, with token counts and vocabulary, and with the text alone."""
    known = [
        AskedText(
            base=ours[0],
            candidate=theirs[0],
            base_tokens=ours[1],
            candidate_tokens=theirs[1],
            text=one.text,
            vocabulary=vocabulary,
        )
        for one, ours, theirs in zip(documents, base, candidate, strict=True)
    ]
    alone = [replace(one, base_tokens=0, candidate_tokens=0, vocabulary=0) for one in known]
    return {"known": known, "estimated": alone}


def _reach(one: AskedText) -> float:
    return min(one.chance - one.candidate_mean, one.base_mean - one.candidate_mean)


def _plant(
    documents: Sequence[Document], base: Sequence[tuple[float, int]], vocabulary: int
) -> dict[str, list[AskedText]]:
    """Documents that lose 80 nats a token, or a token: the text's own, or the estimated number."""
    drawn = np.random.default_rng(0).choice(len(documents), 2 * _PLANTED, replace=False).tolist()
    lost = [(base[n][0] - 80.0 * base[n][1], base[n][1]) for n in drawn[:_PLANTED]]
    lost += [(-math.inf, base[n][1]) for n in drawn[_PLANTED:]]
    return _asked([documents[n] for n in drawn], [base[n] for n in drawn], lost, vocabulary)


# Ports.


def _cast(name: str) -> Callable[[Any], Any]:
    def convert(model: Any) -> Any:
        import torch

        return model.to(getattr(torch, name))

    return convert


def _rounded(one_group: Callable[[torch.Tensor], torch.Tensor], group: int) -> Callable[[Any], Any]:
    """Round every linear layer's weights in groups of inputs; 0: a group is a row."""

    def convert(model: Any) -> Any:
        import torch

        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("_proj.weight"):
                    parts = weight.split(group or weight.shape[1], dim=1)
                    weight.copy_(torch.cat([one_group(part) for part in parts], dim=1))
        return model

    return convert


def _symmetric(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
    top = 2 ** (bits - 1) - 1

    def convert(part: torch.Tensor) -> torch.Tensor:
        scale = part.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / top
        return (part / scale).round().clamp(-top, top) * scale

    return convert


def _asymmetric(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
    top = 2**bits - 1

    def convert(part: torch.Tensor) -> torch.Tensor:
        low, high = part.amin(dim=1, keepdim=True), part.amax(dim=1, keepdim=True)
        scale = (high - low).clamp_min(1e-30) / top
        return ((part - low) / scale).round() * scale + low

    return convert


def _q4_0(part: torch.Tensor) -> torch.Tensor:
    """ggml's: the number that is largest in size becomes -8 times the scale."""
    extreme = part.gather(1, part.abs().argmax(dim=1, keepdim=True))
    scale = extreme / -8.0
    scale[scale == 0.0] = 1e-30
    return (part / scale).round().clamp(-8, 7) * scale


def _nf4(part: torch.Tensor) -> torch.Tensor:
    import torch

    levels = torch.tensor(_NF4)
    scale = part.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)
    nearest = ((part / scale)[..., None] - levels).abs().argmin(dim=-1)
    return levels[nearest] * scale


PORTS: dict[str, Callable[[Any], Any]] = {
    "bfloat16": _cast("bfloat16"),
    "float16": _cast("float16"),
    "int8, a scale per row": _rounded(_symmetric(8), 0),
    "int4, groups of 32": _rounded(_symmetric(4), 32),
    "nf4, groups of 64": _rounded(_nf4, 64),
    "q4_0 (GGUF)": _rounded(_q4_0, 32),
    "2 bits, groups of 16 (as q2_K)": _rounded(_asymmetric(2), 16),
}


if __name__ == "__main__":
    main()
