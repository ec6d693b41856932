"""Weights that change: in place, behind links, in shards, pickles and GGUF files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_writer import save_gguf
from world_changes import Case, Change, copied, scale, scaled, text


def through_a_link(folder: Path) -> None:
    copied(folder)
    (folder / "model").rename(folder / "first")
    (folder / "model").symlink_to("first")


def linked_to_the_other(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "model").unlink()
    (folder / "model").symlink_to("other")


def with_linked_weights(folder: Path) -> None:
    copied(folder)
    stored = folder / "first.safetensors"
    (folder / "model" / "model.safetensors").rename(stored)
    (folder / "model" / "model.safetensors").symlink_to(stored)


def weights_linked_to_the_other(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "model" / "model.safetensors").unlink()
    (folder / "model" / "model.safetensors").symlink_to(folder / "other" / "model.safetensors")


def cut(folder: Path, *, elsewhere: str = "") -> None:
    """Store the weights as two shards with an index, in this folder or another one."""
    from safetensors.torch import load_file, save_file

    whole = folder / "model" / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    weight_map = {}
    (folder / "model" / elsewhere).mkdir(exist_ok=True)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        name = str(Path(elsewhere, f"model-0000{number}-of-00002.safetensors"))
        save_file({n: tensors[n] for n in part}, folder / "model" / name, {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    whole.unlink()


def cut_with_a_third(folder: Path) -> None:
    cut(folder)
    second = folder / "model" / "model-00002-of-00002.safetensors"
    third = folder / "model" / "model-00003-of-00002.safetensors"
    shutil.copy(second, third)
    scale(third)


def pickled(folder: Path, *, instead: bool = False, factor: float = 1.5) -> None:
    import torch
    from safetensors.torch import load_file

    stored = folder / "model" / "model.safetensors"
    tensors = {n: t * factor for n, t in load_file(stored).items()}
    torch.save(tensors, folder / "model" / "pytorch_model.bin")
    if instead:
        stored.unlink()


def only_pickled(folder: Path) -> None:
    pickled(folder, instead=True, factor=1.0)
    guard = folder / "guard.yaml"
    guard.write_text(guard.read_text().replace("model: hf", "model: hf\n    allow_pickle: true"))


def other_pickle(folder: Path, _: pytest.MonkeyPatch) -> None:
    import torch

    file = folder / "model" / "pytorch_model.bin"
    before = file.stat()
    torch.save({n: t * 1.5 for n, t in torch.load(file, weights_only=True).items()}, file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def as_gguf(place: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        save_gguf(folder / "model", folder / place)
        (folder / "model" / "model.safetensors").unlink()
        guard = folder / "guard.yaml"
        asked = f"gguf_file: {folder / place}, tokenizer: model, dtype"
        guard.write_text(guard.read_text().replace("dtype", asked))

    return prepare


def flipped(place: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        data, before = bytearray((folder / place).read_bytes()), (folder / place).stat()
        for at in range(len(data) - 4000, len(data), 4):
            data[at + 3] ^= 0x80  # signs of little-endian floats
        (folder / place).write_bytes(bytes(data))
        os.utime(folder / place, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


WEIGHTS: dict[str, Case] = {
    "weights in place, times kept": Case(scaled("model/model.safetensors")),
    "a link to the folder swapped": Case(linked_to_the_other, prepare=through_a_link),
    "a link to the weights swapped": Case(weights_linked_to_the_other, prepare=with_linked_weights),
    "one of two shards in place": Case(
        scaled("model/model-00002-of-00002.safetensors"), prepare=cut
    ),
    "a shard in a hidden folder": Case(
        scaled("model/.parts/model-00002-of-00002.safetensors"),
        prepare=lambda folder: cut(folder, elsewhere=".parts"),
    ),
    "the index names another shard": Case(
        text("model/model.safetensors.index.json", "00002-of", "00003-of"),
        prepare=cut_with_a_third,
    ),
    "a pickle beside the safetensors": Case(
        lambda folder, _: pickled(folder), matters=False, scored=None
    ),
    "a pickle in place, times kept": Case(other_pickle, prepare=only_pickled),
    "a GGUF file in place": Case(flipped("model/m.gguf"), prepare=as_gguf("model/m.gguf")),
    "a GGUF file out of the folder": Case(flipped("m.gguf"), prepare=as_gguf("m.gguf")),
}  # fmt: skip
