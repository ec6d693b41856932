"""Room for a second model beside the one that is loaded."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from evalguard.models.container_memory import container_free_memory

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
            place = torch.device(device).index or 0
        except RuntimeError:
            return None
        if place >= torch.cuda.device_count():
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
    found = measure_free_memory(device)
    return found is None or weights * _MEMORY_PER_WEIGHT <= found


def _linux_free_memory() -> int | None:
    """What Linux can give without swapping: free pages and caches that can be dropped."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


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
