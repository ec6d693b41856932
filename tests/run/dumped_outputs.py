"""Dumps as another runtime would write them: a folder a document, one .npy file a point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

Array = NDArray[Any]
SYMBOLS = ("<pad>", "|", *"abcdefgh")
OUTPUT = "(root):out"


def write_dump(
    folder: Path,
    outputs: Sequence[Array],
    *,
    config: Mapping[str, Any] | None = None,
    inputs: Sequence[Array] | None = None,
    labels: Sequence[Array] | None = None,
    texts: Sequence[str] | None = None,
    vocabulary: Sequence[str] | None = None,
    points: Mapping[str, Sequence[Array]] | None = None,
    name: str = OUTPUT,
) -> Path:
    """Write what a model put out for documents 000, 001, ..."""
    for number, output in enumerate(outputs):
        document = folder / f"{number:03d}"
        document.mkdir(parents=True)
        np.save(document / f"{name}.npy", output)
        for point, values in (points or {}).items():
            np.save(document / f"{point}.npy", values[number])
        if inputs is not None:
            np.savez(document / "inputs.npz", input_values=inputs[number])
        if labels is not None:
            np.save(document / "labels.npy", labels[number])
        if texts is not None:
            (document / "text.txt").write_text(texts[number] + "\n", encoding="utf-8")
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    if vocabulary is not None:
        numbered = {symbol: number for number, symbol in enumerate(vocabulary)}
        (folder / "vocab.json").write_text(json.dumps(numbered), encoding="utf-8")
    return folder


def make_logits(
    documents: int = 12, *, classes: int = len(SYMBOLS), seed: int = 0
) -> tuple[list[Array], list[Array]]:
    """Logits [1, rows, classes] of documents of 20, 21, ... rows, and the classes they favour."""
    draw = np.random.default_rng(seed)
    outputs, favoured = [], []
    for number in range(documents):
        rows = 20 + number
        own = draw.integers(0, classes, rows)
        values = 2.0 * draw.normal(size=(rows, classes))
        values[np.arange(rows), own] += 6.0
        outputs.append(values[None].astype(np.float32))
        favoured.append(own)
    return outputs, favoured


def make_inputs(documents: int = 12, *, seed: int = 7) -> list[Array]:
    """A wave for each document, of their own lengths."""
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(1, 320 * (20 + n))).astype(np.float32) for n in range(documents)]


def with_noise(outputs: Sequence[Array], size: float, *, seed: int = 1) -> list[Array]:
    """The outputs with normal noise of this size."""
    draw = np.random.default_rng(seed)
    return [(of + size * draw.normal(size=of.shape)).astype(of.dtype) for of in outputs]
