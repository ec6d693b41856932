"""How fast ``evalguard tensors`` is beside plain reading of the same bytes, and in what memory.

    python -m benchmarks.tensors --gigabytes 10 --output benchmarks/results/tensors.md

Two safetensors files of random weights in the shapes of a Llama are written, read from one end to
the other with nothing done to the bytes, and compared by the command line in a process of its own.
Before each run the files are put out of the page cache (``--warm`` leaves them in). The files are
removed at the end. Packed files are also read and dequantised with nothing compared, and GGUF files
of every type that the package gguf dequantises (``--ggml``: these alone).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import deliver
from evalguard.core.precision_vote import round_mantissa
from evalguard.tensor_files.opening import open_tensors
from evalguard.tensor_files.packed.levels import codebook_levels, float8_levels
from evalguard.tensor_files.packed.row_codec import RowBytes
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.streamed_sums import forget_bytes

WIDTH, INNER, VOCABULARY = 2048, 5632, 32000
READ = 1 << 24  # bytes at a time of the plain reading
PIECE = 1 << 18  # elements that a comparison reads at a time
SHARE = 1 << 21  # that it gives to a process at a time
PART, PACKED_PART = 1 << 15, 1 << 17  # that it decodes at a time
CHILD = (
    "import os, resource, sys; from evalguard.cli import main\n"
    "try: main(sys.argv[1:])\n"
    "except SystemExit: pass\n"
    "own, forks = (resource.getrusage(who) for who in\n"
    "              (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
    "used = own.ru_utime + own.ru_stime + forks.ru_utime + forks.ru_stime\n"
    # not ru_maxrss, which begins with that of the process that started this one
    "peak = next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]\n"
    # of the forks the largest, once for each: what they share with one another counts twice
    "print(int(peak) + len(os.sched_getaffinity(0)) * forks.ru_maxrss, used, file=sys.stderr)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pair of files; ``noise``: standard deviation of what is added to the candidate."""

    name: str
    base: str
    candidate: str
    noise: float


CASES = (
    Case(name="bfloat16, bit-identical", base="BF16", candidate="BF16", noise=0.0),
    Case(name="bfloat16, every element changed", base="BF16", candidate="BF16", noise=5e-4),
    Case(name="float32 and bfloat16", base="F32", candidate="BF16", noise=0.0),
    Case(name="float32, every element changed", base="F32", candidate="F32", noise=5e-4),
    Case(name="bfloat16 and int8 with a scale a row", base="BF16", candidate="I8", noise=0.0),
    Case(name="bfloat16 and ModelOpt NVFP4", base="BF16", candidate="NVFP4", noise=0.0),
    Case(name="bfloat16 and GPTQ int4", base="BF16", candidate="GPTQ", noise=0.0),
    Case(name="bfloat16 and bitsandbytes nf4", base="BF16", candidate="NF4", noise=0.0),
    Case(name="bfloat16 and FP8 in blocks", base="BF16", candidate="FP8", noise=0.0),
)


def main() -> None:
    """Measure all cases and deliver the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of both files together")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--case", default="", help="those whose name holds it")
    parser.add_argument("--ggml", action="store_true", help="types of GGUF alone")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.ggml:
        rows = list(measure_ggml(options.folder, options.gigabytes, options.times, options.warm))
        deliver(render_ggml(rows, warm=options.warm, times=options.times), options.output)
        return
    rows, packed, alone = [], [], 0.0
    for case in (one for one in CASES if options.case in one.name):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            files = [Path(folder) / f"{side}.safetensors" for side in ("base", "candidate")]
            size = write_pair(case, files, int(options.gigabytes * 1e9))
            measured = measure(case, files, size, options.times, warm=options.warm)
            rows.append(measured.row)
            if case.noise and case.base == case.candidate == "BF16":
                alone = measured.processor
            if case.candidate in PACKED:
                name = case.name.removeprefix("bfloat16 and ")
                row = measure_dequantising(name, files, options.times, warm=options.warm)
                share = f"{measured.processor / alone:.2f}" if alone else ""
                packed.append([*row, share])
    deliver(render(rows, packed, warm=options.warm, times=options.times), options.output)


def write_pair(case: Case, files: list[Path], wanted: int) -> int:
    """Write both files; return the bytes of their tensors."""
    width = sum(WIDTHS[kind] for kind in (case.base, case.candidate))
    shapes = dict(shapes_of(int(wanted / width)))
    generator = np.random.default_rng(0)
    if case.candidate in PACKED:
        return write_packed(case, files, shapes, generator)
    outputs = [file.open("wb") for file in files]
    for output, kind in zip(outputs, (case.base, case.candidate), strict=True):
        output.write(header(shapes, kind))
    for shape in shapes.values():
        values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        outputs[0].write(encode(values, case.base))
        if case.noise:
            values += generator.standard_normal(shape, dtype=np.float32) * np.float32(case.noise)
        outputs[1].write(encode(values, case.candidate))
    for output in outputs:
        output.flush()
        os.fsync(output.fileno())
        output.close()
    return sum(file.stat().st_size for file in files)


def write_packed(
    case: Case,
    files: list[Path],
    shapes: dict[str, tuple[int, int]],
    generator: np.random.Generator,
) -> int:
    """Write a plain base and a packed candidate; return the bytes of both files."""
    from safetensors.numpy import save_file

    packed: dict[str, np.ndarray] = {}
    with files[0].open("wb") as output:
        output.write(header(shapes, case.base))
        for name, shape in shapes.items():
            values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            output.write(encode(values, case.base))
            packed |= PACKED[case.candidate](name, values)
    scales = [name for name, one in packed.items() if one.dtype == np.dtype("V1")]
    plain = {name: one.view(np.uint8) if name in scales else one for name, one in packed.items()}
    save_file(plain, files[1])
    if scales:
        rename_dtype(files[1], scales)
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    return sum(file.stat().st_size for file in files)


def rename_dtype(path: Path, names: list[str]) -> None:
    """Call some tensors of bytes float8 in a file's header, which numpy has not."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        told = json.loads(file.read(length))
        for name in names:
            told[name]["dtype"] = "F8_E4M3"
        text = json.dumps(told, separators=(",", ":")).encode()
        room = max(length, len(text))
        file.seek(8 + length)
        rest = file.read()
        file.seek(0)
        file.write(room.to_bytes(8, "little") + text.ljust(room) + rest)


def pack_int8(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return integers of 8 bits and a scale for each row."""
    scale = np.abs(values).max(axis=1, keepdims=True) / 127
    return {name: np.rint(values / scale).astype(np.int8), f"{name}_scale": scale}


def pack_nvfp4(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return ModelOpt's parts, all blocks with the scale of the largest element."""
    whole = np.abs(values).max() / np.float32(6)
    size = np.abs(values) / whole
    edges = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32)
    codes = np.searchsorted(edges, size).astype(np.uint8) | ((values < 0).astype(np.uint8) << 3)
    one = np.full((values.shape[0], values.shape[1] // 16), 0x38, dtype=np.uint8)
    return {
        name: codes[:, ::2] | (codes[:, 1::2] << 4),
        f"{name}_scale": one.view("V1"),
        f"{name}_scale_2": np.float32(whole).reshape(1),
    }


def pack_gptq(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return GPTQ's parts, in groups of 128."""
    stem, (rows, columns) = name.removesuffix(".weight"), values.shape
    groups = values.reshape(rows, -1, 128)
    scale = (np.abs(groups).max(axis=2) / 7).astype(np.float16)
    codes = np.clip(np.rint(groups / scale[..., None].astype(np.float32)) + 8, 0, 15)
    grid = codes.reshape(rows, columns).T.astype(np.uint32).reshape(-1, 8, rows)
    words = (grid << np.arange(0, 32, 4, dtype=np.uint32)[None, :, None]).sum(1, dtype=np.uint32)
    return {
        f"{stem}.qweight": np.ascontiguousarray(words).view(np.int32),
        f"{stem}.qzeros": np.full((columns // 128, rows // 8), 0x77777777, dtype=np.int32),
        f"{stem}.scales": np.ascontiguousarray(scale.T),
    }


def pack_nf4(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return bitsandbytes' parts, in blocks of 64."""
    table = codebook_levels("nf4").values[:16]
    blocks = values.reshape(-1, 64)
    absmax = np.abs(blocks).max(axis=1)
    scaled = blocks / absmax[:, None]
    codes = np.searchsorted((table[1:] + table[:-1]) / 2, scaled).astype(np.uint8).reshape(-1)
    told = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": values.shape}
    return {
        name: ((codes[::2] << 4) | codes[1::2]).reshape(-1, 1),
        f"{name}.absmax": absmax,
        f"{name}.quant_map": table,
        f"{name}.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(told).encode(), np.uint8),
    }


def pack_fp8(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return DeepSeek's parts, in blocks of 128 x 128."""
    high, wide = (size // 128 for size in values.shape)
    blocks = values.reshape(high, 128, wide, 128)
    scale = np.abs(blocks).max(axis=(1, 3)) / np.float32(448)
    scaled = (blocks / scale[:, None, :, None]).reshape(values.shape)
    table = float8_levels("float8_e4m3fn").values[:127]
    codes = np.searchsorted((table[1:] + table[:-1]) / 2, np.abs(scaled)).astype(np.uint8)
    codes |= (values < 0).astype(np.uint8) << 7
    return {name: codes.view("V1"), f"{name}_scale_inv": scale}


PACKED = {
    "I8": pack_int8,
    "NVFP4": pack_nvfp4,
    "GPTQ": pack_gptq,
    "NF4": pack_nf4,
    "FP8": pack_fp8,
}
WIDTHS = {  # bytes an element
    "BF16": 2.0,
    "F32": 4.0,
    "I8": 1.0,
    "NVFP4": 0.57,
    "GPTQ": 0.52,
    "NF4": 0.57,
    "FP8": 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table, and the processor's seconds for each element."""

    row: list[str]
    processor: float


def shapes_of(elements: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield names and shapes of a Llama, layer after layer, until there are enough elements."""
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    left, layer = elements - VOCABULARY * WIDTH, 0
    parts = [("q_proj", WIDTH, WIDTH), ("o_proj", WIDTH, WIDTH)]
    parts += [("gate_proj", INNER, WIDTH), ("up_proj", INNER, WIDTH), ("down_proj", WIDTH, INNER)]
    while left > 0:
        for name, rows, columns in parts:
            yield f"model.layers.{layer}.{name}.weight", (rows, columns)
            left -= rows * columns
        layer += 1


def header(shapes: dict[str, tuple[int, int]], kind: str) -> bytes:
    """Return the head of a safetensors file."""
    width, at, entries = {"BF16": 2, "F32": 4}[kind], 0, {}
    for name, shape in shapes.items():
        end = at + shape[0] * shape[1] * width
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def encode(values: np.ndarray, kind: str) -> bytes:
    """Return the values as they are stored."""
    if kind == "F32":
        return values.tobytes()
    upper: np.ndarray = round_mantissa(values, 7).view(np.uint32) >> np.uint32(16)
    return upper.astype(np.uint16).tobytes()


def measure(case: Case, files: list[Path], size: int, times: int, *, warm: bool) -> Measured:
    """Return a row: the best of several readings, and of several comparisons."""
    readings, walls, processors, memories = [], [], [], []
    for _ in range(times):
        forget(files, warm=warm)
        begun = time.perf_counter()
        for file in files:
            read_bytes(file)
        readings.append(time.perf_counter() - begun)
        forget(files, warm=warm)
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, "tensors", *map(str, files), "--json", "-q"],
            capture_output=True,
            text=True,
            check=True,
        )
        walls.append(time.perf_counter() - begun)
        kilobytes, seconds = done.stderr.split()[-2:]
        memories.append(int(kilobytes) / 1e6)
        processors.append(float(seconds))
    best, reading = min(walls), min(readings)
    row = [
        case.name,
        f"{size / 1e9:.1f} GB",
        f"{size / reading / 1e9:.2f} GB/s",
        f"{size / best / 1e9:.2f} GB/s",
        f"{best / reading:.2f}",
        f"{size / min(processors) / 1e9:.2f} GB",
        f"{max(memories):.2f} GB",
    ]
    return Measured(row=row, processor=min(processors) / count_elements(files[0]))


def measure_dequantising(name: str, files: list[Path], times: int, *, warm: bool) -> list[str]:
    """Return a row: the packed file read plainly by one process, and read as numbers by one and by
    one for each core, as the command does; the base read as numbers."""
    plain, packed, shared, base = [], [], [], []
    for _ in range(times):
        forget(files, warm=warm)
        plain.append(clock(read_bytes, files[1]))
        forget(files, warm=warm)
        packed.append(clock(read_numbers, files[1]))
        forget(files, warm=warm)
        shared.append(clock(share_reading, files[1]))
        base.append(clock(read_numbers, files[0]))
    size = files[1].stat().st_size
    return [
        name,
        f"{size / min(plain) / 1e9:.2f} GB/s",
        f"{size / min(packed) / 1e9:.2f} GB/s",
        f"{min(packed) / min(plain):.2f}",
        f"{min(shared) / min(plain):.2f}",
        f"{min(packed) / min(base):.2f}",
    ]


def measure_ggml(
    folder: Path | None, gigabytes: float, times: int, warm: bool
) -> Iterator[list[str]]:
    """Yield a row for each type of ggml that has blocks: the file read plainly, read as numbers,
    and beside bfloat16 of as many weights; and the seconds of the processor beside gguf's own."""
    import gguf

    elements = int(gigabytes * 1e9) // 2 // WIDTH * WIDTH
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        base = Path(made) / "base.gguf"
        numbers = generator.integers(0, 256, 2 * elements, dtype=np.uint8)
        write_ggml(base, gguf.GGMLQuantizationType.BF16, numbers.reshape(-1, 2 * WIDTH))
        for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
            if block == 1 or kind not in gguf.quants._type_traits:
                continue
            stored = numbers[: elements // block * size] & 0x77  # finite float16
            rows = stored.reshape(-1, WIDTH // block * size)
            file = Path(made) / f"{kind.name}.gguf"
            write_ggml(file, kind, rows)
            with np.errstate(all="ignore"):
                row = measure_dequantising(kind.name.lower(), [base, file], times, warm=warm)
                few = rows[: (1 << 21) // WIDTH]
                theirs = min(spend(gguf.dequantize, few, kind) for _ in range(times))
                ours = min(spend(read_numbers, file) for _ in range(times))
            file.unlink()
            theirs *= len(rows) / len(few)
            yield [*row[:1], f"{8 * size / block:.2f}", *row[1:], f"{theirs / ours:.1f}"]


def write_ggml(file: Path, kind: Any, rows: np.ndarray) -> None:
    """Write a GGUF file of one tensor."""
    import gguf

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def spend(function: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of the processor that a call takes."""
    begun = time.process_time()
    function(*arguments)
    return time.process_time() - begun


def clock(read: Callable[[Path], object], file: Path) -> float:
    """Return the seconds that reading a file takes."""
    begun = time.perf_counter()
    read(file)
    return time.perf_counter() - begun


def read_bytes(file: Path) -> None:
    """Read a file from one end to the other."""
    with file.open("rb", buffering=0) as stream:
        buffer = bytearray(READ)
        while stream.readinto(buffer):
            pass


def share_reading(file: Path) -> None:
    """Read all tensors of a file as numbers in a fork for each core."""
    context = multiprocessing.get_context("fork")
    shares = context.Value("l", 0)

    def take_turns() -> Iterator[int]:
        while True:
            with shares.get_lock():
                turn, shares.value = shares.value, shares.value + 1
            yield turn

    cores = range(len(os.sched_getaffinity(0)))
    forks = [context.Process(target=read_numbers, args=(file, take_turns())) for _ in cores]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join()
        assert fork.exitcode == 0


def read_numbers(file: Path, turns: Iterable[int] | None = None) -> None:
    """Read all tensors of a file as numbers, in pieces as a comparison does; of several processes
    each takes its turns at what the command gives to one process."""
    with open_tensors(file) as found:
        shares = [
            (tensor, start, min(start + share, tensor.elements))
            for tensor in found.tensors.values()
            for share in [share_of(tensor)]
            for start in range(0, tensor.elements, share)
        ]
        for turn in itertools.count() if turns is None else turns:
            if turn >= len(shares):
                break
            tensor, first, last = shares[turn]
            block, size = tensor.codec.block, tensor.codec.size
            wanted = PACKED_PART if tensor.codec.quantised else PART
            step, part = (max(elements // block, 1) for elements in (PIECE, wanted))
            for at in range(first, last, step * block):
                raw = tensor.read_bytes(at, min(at + step * block, last))
                for begin in range(0, raw.size, part * size):
                    tensor.codec.decode(raw[begin : begin + part * size])
            if last == tensor.elements:
                forget_bytes(tensor)


def share_of(tensor: StoredTensor) -> int:
    """Return how many elements one process is given at a time: all where they lie across one
    another in the file."""
    if isinstance(tensor.source, RowBytes) and tensor.source.at_once:
        return tensor.elements
    return max(SHARE // tensor.codec.block, 1) * tensor.codec.block


def count_elements(file: Path) -> int:
    """Return how many numbers a file holds."""
    with open_tensors(file) as found:
        return sum(tensor.elements for tensor in found.tensors.values())


def forget(files: list[Path], *, warm: bool) -> None:
    """Put files out of the page cache."""
    if warm:
        return
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def render(
    rows: list[list[str]], packed: list[list[str]], *, warm: bool, times: int
) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Comparing tensor files, beside reading them"
    yield ""
    cache = "with the files in the page cache" if warm else "with the files out of the page cache"
    yield (
        f"`python -m benchmarks.tensors {shlex.join(sys.argv[1:])}`; "
        f"Python {platform.python_version()}, numpy {np.__version__}, "
        f"{platform.machine()}, {os.cpu_count()} cores at a load of "
        f"{os.getloadavg()[0]:.0f}, {cache}; best of {times}, greatest memory."
    )
    yield ""
    columns = ("pair", "both files", "plain reading", "evalguard tensors", "ratio")
    yield f"| {' | '.join((*columns, 'per CPU second', 'peak memory'))} |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
    yield (
        "- ratio: time of the whole command, start-up and its naming of differences included, over "
        "that of reading the same bytes from one end to the other. Reading waits for the disk, and "
        "comparing for the processor: where other work has most of it, the ratio says little, and "
        "what a second of one core compares says more. Memory is that of all processes, and does "
        "not grow with the files: tensors are read in pieces of 262,144 elements."
    )
    if not packed:
        return
    yield ""
    yield "## Packed files: dequantising while reading"
    yield ""
    yield (
        "| packed file | plain reading | read and dequantised | ratio | ratio, a process for each "
        "core | beside bfloat16 of the same weights, read as numbers | whole command beside a "
        "plain pair |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in packed:
        yield f"| {' | '.join(row)} |"
    yield ""
    yield (
        "- Bytes are those of the packed file, by one process: of 4 bits each of them becomes two "
        "float32, eight bytes. A process for each core is how the command reads, beside plain "
        "reading by one all the same. Whole command: seconds of the processor for each weight, "
        "over those of two bfloat16 files of which every element differs."
    )


def render_ggml(rows: list[list[str]], *, warm: bool, times: int) -> Iterator[str]:
    """Yield the lines of the table of GGUF's types."""
    yield "## GGUF: dequantising while reading"
    yield ""
    cache = "in the page cache" if warm else "out of the page cache"
    yield (
        f"`python -m benchmarks.tensors {shlex.join(sys.argv[1:])}`; {os.cpu_count()} cores at a "
        f"load of {os.getloadavg()[0]:.0f}, files {cache}; best of {times}. Plain reading, ratio "
        "and beside bfloat16: as above. Beside gguf: seconds of the processor of gguf.dequantize "
        "for the same rows, over those of reading and dequantising here."
    )
    yield ""
    yield (
        "| type | bits per weight | plain reading | read and dequantised | ratio | ratio, a "
        "process for each core | beside bfloat16 | gguf over this |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
