"""Packages that are installed, by their files: one is edited in place, and its version stays."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evalguard.conversion.digests import KnownDigests, digest_path
from evalguard.core.settings import Value

# What models are made of, and what reads their texts.
LIBRARIES = (
    "accelerate", "auto_round", "awq", "bitsandbytes", "causal_conv1d", "compressed_tensors",
    "einops", "fla", "flash_attn", "gptqmodel", "jinja2", "lm_eval", "mamba_ssm", "numpy",
    "optimum", "peft", "rwkv", "safetensors", "sentencepiece", "tiktoken", "tokenizers", "torch",
    "torchao", "transformers", "vllm", "xformers",
)  # fmt: skip


def loaded_packages() -> tuple[str, ...]:
    """Names of the packages that this process has imported, but for Python's own and evalguard."""
    names = {name.partition(".")[0] for name in tuple(sys.modules)}
    return tuple(
        sorted(
            name
            for name in names - {*sys.stdlib_module_names, "evalguard", "__main__", "__mp_main__"}
            if getattr(sys.modules.get(name), "__spec__", None) is not None
        )
    )


def installed_versions() -> dict[str, Value]:
    """Versions of all packages of this interpreter, by name."""
    found = ((one.name, one.version) for one in importlib.metadata.distributions())
    return {str(name): str(version) for name, version in sorted(found) if name}


def digest_packages(names: Sequence[str], known: KnownDigests | None = None) -> dict[str, str]:
    """Digests of the Python and compiled files of installed packages; of this process, once.

    What was imported stays what it is, whatever is edited afterwards.
    """
    for name in names:
        if name in _read_packages:
            continue
        spec = importlib.util.find_spec(name)
        places = [] if spec is None else [*(spec.submodule_search_locations or ())]
        if spec is not None and not places and spec.origin and Path(spec.origin).is_file():
            _read_packages[name] = digest_path(Path(spec.origin), known)
        else:
            found = [_package_digest(Path(one), known) for one in places if Path(one).is_dir()]
            _read_packages[name] = " ".join(found)
    return {f"package {name}": _read_packages[name] for name in names if _read_packages[name]}


_read_packages: dict[str, str] = {}
# Of larger compiled files the size counts: a GPU build of torch has gigabytes of them.
_LARGEST_READ = 2**26


def _package_digest(folder: Path, known: KnownDigests | None) -> str:
    """Digest of a package's Python files; read once while their sizes and times stand still."""
    files = sorted(_python_files(str(folder)))
    listing = hashlib.sha256(repr(files).encode()).digest()
    state = [int.from_bytes(listing[:6], "big"), int.from_bytes(listing[6:12], "big")]
    place = str(folder.resolve())
    found = None if known is None else known.get(place, state)
    if not found:
        whole = hashlib.sha256()
        for name, size, *_ in files:
            read = size <= _LARGEST_READ
            content = hashlib.sha256(Path(name).read_bytes()).hexdigest() if read else size
            whole.update(f"{os.path.relpath(name, folder)}\0{content}\n".encode())
        found = whole.hexdigest()
        if known is not None:
            known.put(place, state, found)
    return found


def _python_files(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """Every Python file below a folder, with its size and the times of its last changes."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _python_files(entry.path)
            elif entry.name.endswith((".py", ".so")):
                state = entry.stat()
                yield entry.path, state.st_size, state.st_mtime_ns, state.st_ctime_ns
