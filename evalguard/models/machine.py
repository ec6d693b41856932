"""Free memory of this machine or container, and room for a second model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OWN_GROUPS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """What a version calls its files; ``droppable`` stands in memory.stat."""

    limit: str
    used: str
    droppable: str


_VERSION_1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def container_free_memory(own: Path = _OWN_GROUPS, root: Path = _CGROUP_ROOT) -> int | None:
    """Bytes that this process may still take; None where no group limits it.

    The tightest of the group and those around it counts. Cached file pages that were not read for a
    while can be dropped, and count as free.

    Args:
        own: the file that names this process's groups.
        root: where the groups' files are.
    """
    rooms = [
        room
        for folder, files in _groups(own, root)
        if (room := _group_free_memory(folder, files)) is not None
    ]
    return min(rooms, default=None)


def _groups(own: Path, root: Path) -> Iterator[tuple[Path, _GroupFiles]]:
    """Folders of the groups that this process is in, the innermost first."""
    for line in _read_text(own).splitlines():
        _, controllers, path = (*line.split(":", 2), "-", "")[:3]
        if controllers == "":
            yield from ((folder, _VERSION_2) for folder in _enclosing_groups(root, path))
        elif "memory" in controllers.split(","):
            yield from ((folder, _VERSION_1) for folder in _enclosing_groups(root / "memory", path))


def _enclosing_groups(root: Path, path: str) -> Iterator[Path]:
    """A group's folder and all around it; inside a container its path may not be visible."""
    folder = root / path.strip("/")
    while folder != root and folder.is_relative_to(root):
        yield folder
        folder = folder.parent
    yield root


def _group_free_memory(folder: Path, files: _GroupFiles) -> int | None:
    limit, used = _read_number(folder / files.limit), _read_number(folder / files.used)
    if limit is None or used is None:
        return None
    stat = dict(
        line.split()[:2] for line in _read_text(folder / "memory.stat").splitlines() if line
    )
    return max(0, limit - used + int(stat.get(files.droppable, 0)))


def _read_number(path: Path) -> int | None:
    """A file's number; None for "max", and where there is none."""
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# Beside its weights a model needs room for activations and one batch's logits.
_MEMORY_PER_WEIGHT = 1.25


def weight_bytes(parameters: int, dtype: str) -> int:
    """Bytes of a model's weights; ``dtype`` as ``model_dtype`` names it, the most common first."""
    bits = re.search(r"\d+", dtype.partition("+")[0])  # float32, bfloat16, float8_e4m3fn
    return parameters * (max(1, int(bits.group()) // 8) if bits else 4)


def checkpoint_bytes(pretrained: object) -> int:
    """Bytes of the weights in a model folder; 0 for what is not a folder here."""
    folder = Path(str(pretrained)).expanduser()
    if not folder.is_dir():
        return 0
    kinds = ("*.safetensors", "*.bin", "*.gguf")
    return sum(file.stat().st_size for kind in kinds for file in folder.glob(kind))


def measure_free_memory(device: str) -> int | None:
    """Bytes that can still be taken on a device; None where that is not known, or there is none.

    Who loads a model onto a device that is not there says so.
    """
    if device.startswith("cuda"):
        import torch

        try:
            index = torch.device(device).index or 0
        except RuntimeError:
            return None
        if index >= torch.cuda.device_count():
            return None
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device != "cpu":
        return None
    rooms = [
        room
        for room in (_linux_free_memory() or _free_page_bytes(), container_free_memory())
        if room is not None
    ]
    return min(rooms, default=None)


def fits_in_memory(weights: int, device: str) -> bool:
    """Whether a model of so many bytes fits on a device beside what is there already."""
    available = measure_free_memory(device)
    return available is None or weights * _MEMORY_PER_WEIGHT <= available


def _linux_free_memory() -> int | None:
    """What Linux can give without swapping: free pages and caches that can be dropped."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    amounts = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(amounts[0]) * 1024 if amounts else None


def _free_page_bytes() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def peak_device_memory() -> int | None:
    """Most bytes that torch has held on one CUDA device; None where it has used none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    devices = range(torch.cuda.device_count())
    return max(int(torch.cuda.max_memory_allocated(device)) for device in devices)
