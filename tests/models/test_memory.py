"""Whether a second model fits beside the first one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evalguard.models import machine as memory
from evalguard.models.machine import (
    checkpoint_bytes,
    container_free_memory,
    fits_in_memory,
    measure_free_memory,
    weight_bytes,
)


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
    monkeypatch.setattr(memory, "measure_free_memory", lambda device: 1000)
    assert fits_in_memory(800, "cpu")
    assert not fits_in_memory(801, "cpu")
    monkeypatch.setattr(memory, "measure_free_memory", lambda device: None)
    assert fits_in_memory(10**15, "mps")  # not known, so it is tried


def test_the_room_of_this_machine_is_known_and_a_strange_devices_is_not() -> None:
    found = measure_free_memory("cpu")
    assert found is None or found > 2**20
    assert [measure_free_memory(name) for name in ("xpu", "cuda:77", "cuda:x")] == [None] * 3


def test_without_linux_free_pages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refused)
    found = measure_free_memory("cpu")
    assert found is None or found > 2**20
    monkeypatch.setattr(memory.os, "sysconf", refused)
    assert measure_free_memory("cpu") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_room_counts_what_torch_holds_and_does_not_use() -> None:
    before = measure_free_memory("cuda")
    held = torch.empty(2**28, device="cuda")
    del held
    after = measure_free_memory("cuda")
    assert before is not None
    assert after is not None
    assert after > before - 2**27


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")


def test_the_tightest_group_around_a_container_counts(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    own.write_text("0::/outer/inner\n")
    group(root / "outer" / "inner", max="max", current=700)
    assert container_free_memory(own, root) is None
    group(root / "outer", max=1000, current=700, stat="anon 5\ninactive_file 50")
    assert container_free_memory(own, root) == 350
    group(root / "outer" / "inner", max=800, current=700, stat="inactive_file 0")
    assert container_free_memory(own, root) == 100
    group(root / "outer" / "inner", max=800, current=900)
    assert container_free_memory(own, root) == 0


def test_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    own.write_text("5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    # inside the container its own group is the root, and the path above is not there
    group(root / "memory", limit_in_bytes=500, usage_in_bytes=200, stat="total_inactive_file 30")
    assert container_free_memory(own, root) == 330


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert container_free_memory(tmp_path / "none", tmp_path) is None
    (tmp_path / "odd").write_text("no colons here\n0::/x\n")
    assert container_free_memory(tmp_path / "odd", tmp_path) is None


def test_what_a_container_allows_is_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "container_free_memory", lambda: 12345)
    assert measure_free_memory("cpu") == 12345
