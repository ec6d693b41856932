"""Whether a second model fits beside the first one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evalguard.models import memory
from evalguard.models.memory import checkpoint_bytes, fits, room, weight_bytes


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", 400), ("bfloat16", 200), ("float64+float32", 800), ("", 400), ("odd", 400)],
)
def test_weights_take_their_dtypes_bytes(dtype: str, expected: int) -> None:
    assert weight_bytes(100, dtype) == expected


def test_a_checkpoint_takes_what_its_files_take(tiny_llama: Path, tmp_path: Path) -> None:
    assert checkpoint_bytes(tiny_llama) == (tiny_llama / "model.safetensors").stat().st_size
    assert checkpoint_bytes(tmp_path / "nowhere") == checkpoint_bytes("owner/model") == 0
    assert checkpoint_bytes(None) == 0


def test_a_model_needs_its_weights_and_a_quarter_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda device: 1000)
    assert fits(800, "cpu")
    assert not fits(801, "cpu")
    monkeypatch.setattr(memory, "room", lambda device: None)
    assert fits(10**15, "mps")  # not known, so it is tried


def test_the_room_of_this_machine_is_known_and_a_strange_devices_is_not() -> None:
    found = room("cpu")
    assert found is None or found > 2**20
    assert room("xpu") is None


def test_without_linux_free_pages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refused)
    found = room("cpu")
    assert found is None or found > 2**20
    monkeypatch.setattr(memory.os, "sysconf", refused)
    assert room("cpu") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_room_counts_what_torch_holds_and_does_not_use() -> None:
    before = room("cuda")
    held = torch.empty(2**28, device="cuda")
    del held
    after = room("cuda")
    assert before is not None
    assert after is not None
    assert after > before - 2**27
