"""Size and precision of a reference file: bytes a scored token, and the width of KL's bounds.

    python -m benchmarks.reference_file --limit 200 --output benchmarks/results/reference_file.md

Whole texts of the demo's model, and of stories260K where ``--shared-data`` is at hand, against the
same weights rounded (int8, a scale per output channel; int4, a scale per 32 inputs), by
``evalguard.compare`` on one thread: once in lock-step, which is exact, and once by a reference file
for every k. And simulated distributions over a vocabulary of common size, through the same code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import deliver
from benchmarks.quantised import GROUP, quantised_copy

ROOT = Path(__file__).parent.parent
KEPT = (16, 64, 256)
CONVERSIONS = {"int8": (8, None), "int4": (4, GROUP)}
SEED = 20261120
COMMAND = (
    "python -m benchmarks.reference_file --limit 200 --output benchmarks/results/reference_file.md"
)
SIMULATED_VOCABULARY, SIMULATED_POSITIONS = 50_257, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, one task of whole texts, and the folder of the task if it is not built in."""

    name: str
    folder: Path
    task: str
    include: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one way of measuring gave: mean KL in nats, its bounds, and the file's bytes."""

    kl: float
    low: float
    high: float
    positions: int
    file_bytes: int = 0


def main() -> None:
    """Measure; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--limit", type=int, help="only so many documents of a task")
    parser.add_argument("--shared-data", type=Path, help="folder with stories260K",
                        default=os.environ.get("EVALGUARD_SHARED_DATA", ROOT.parent / "shared/data"))  # fmt: skip # noqa: E501
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = [*_models(Path(options.shared_data), Path(folder))]
        lines = [*_report(models, Path(folder), options.limit)]
    deliver(lines, options.output)


def _models(shared_data: Path, folder: Path) -> Iterator[Model]:
    yield Model(name="demo", folder=ROOT / "demo" / "model", task="evalguard_rolling")
    data = shared_data / "stories260K"
    if data.is_dir():
        task = f"""
task: stories_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {json.dumps(str(data / "tinystories_lastword.jsonl"))}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""
        (folder / "stories_text.yaml").write_text(task, encoding="utf-8")
        yield Model(name="stories260K", folder=data / "hf", task="stories_text", include=(folder,))


def _report(models: Sequence[Model], folder: Path, limit: int | None) -> Iterator[str]:
    yield "# Size and precision of a reference file\n"
    yield f"`{COMMAND}`\n"
    yield (
        "Bytes: of the whole file, per scored token. Mean KL in nats a token over all scored "
        "tokens of whole texts: exact (lock-step), estimated from the reference, and its proven "
        "bounds; width: of the bounds, in exact KL. Simulated: logits normal with spread 3, "
        "the candidate's moved by a spread of 0.05 or 0.5.\n"
    )
    yield "| base, vocabulary | candidate | tokens | k | bytes a token | exact | estimate | bounds | width |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|"
    for model in models:
        size = json.loads((model.folder / "config.json").read_text())["vocab_size"]
        for conversion, (bits, group) in CONVERSIONS.items():
            copy = folder / f"{model.name}-{conversion}"
            candidate = quantised_copy(model.folder, copy, bits=bits, group=group)
            exact = _compared(model, candidate, folder, limit, None)
            for k in KEPT:
                found = _compared(model, candidate, folder, limit, k)
                yield _row(f"{model.name}, {size:,}", conversion, k, exact, found)
    for moved in (0.05, 0.5):
        for k in KEPT:
            exact, found = _simulated(folder, k, moved)
            name = f"simulated, {SIMULATED_VOCABULARY:,}"
            yield _row(name, f"spread {moved:g}", k, exact, found)
    packages = ", ".join(f"{name} {version(name)}" for name in ("lm_eval", "torch", "pyarrow"))
    yield f"\nSeed {SEED}. {packages}, Python {platform.python_version()}."


def _row(base: str, candidate: str, k: int, exact: Found, found: Found) -> str:
    width = (found.high - found.low) / exact.kl
    cells = [
        base, candidate, f"{found.positions:,}", str(k),
        f"{found.file_bytes / found.positions:.0f}", f"{exact.kl:.4g}", f"{found.kl:.4g}",
        f"{found.low:.4g} to {found.high:.4g}", f"{width:.2g}",
    ]  # fmt: skip
    assert found.low <= exact.kl <= found.high
    return f"| {' | '.join(cells)} |"


def _compared(
    model: Model, candidate: Path, folder: Path, limit: int | None, k: int | None
) -> Found:
    """Compare by a reference file of k tokens; in lock-step for None."""
    import evalguard

    file = folder / f"{candidate.name}-{k}.parquet"
    how: dict[str, Any] = {"distributions": "lockstep"}
    if k is not None:
        how = {"save_reference": file, "reference_top_k": k}
    result = evalguard.compare(
        model.folder, candidate, tasks=[model.task], include_path=model.include, limit=limit,
        base_model_args={"dtype": "float32"}, cand_model_args={"dtype": "float32"}, device="cpu",
        threads=1, quiet=True, use_cache=False, write=False, cache_dir=folder / "cache", **how,
    )  # fmt: skip
    (found,) = result.distributions
    assert found.kl.value is not None, found.failure
    low, high = found.kl.bounds or (found.kl.value, found.kl.value)
    size = 0 if k is None else file.stat().st_size
    return Found(kl=found.kl.value, low=low, high=high, positions=found.positions, file_bytes=size)


def _simulated(folder: Path, k: int, moved: float) -> tuple[Found, Found]:
    """Distributions over a large vocabulary, a hundred tokens at a time."""
    from evalguard.core.divergence import SAMPLES, divergence, divergence_from, reference
    from evalguard.core.scorer import Response
    from evalguard.distributions.reference_file import ReferenceWriter

    random = np.random.default_rng(SEED)
    exact, found = [], []
    file = folder / f"simulated-{k}-{moved}.parquet"
    with ReferenceWriter(file, {}) as writer:
        for block in range(SIMULATED_POSITIONS // 100):
            logits = 3.0 * random.standard_normal((100, SIMULATED_VOCABULARY))
            base = _logprobs(logits)
            candidate = _logprobs(logits + moved * random.standard_normal(logits.shape))
            ids = base.argmax(axis=1)
            kept = reference(base, ids, top_k=k, samples=SAMPLES, seed=(SEED, block))
            exact.append(divergence(base, candidate, ids))
            found.append(divergence_from(kept, candidate))
            response = Response(loglikelihood=0.0, token_logprobs=kept.token_logprobs)
            writer.add("simulated", str(block), [response], [kept])
    means = [
        float(np.concatenate([getattr(one, name) for one in found]).mean())
        for name in ("kl", "kl_low", "kl_high")
    ]
    truth = float(np.concatenate([one.kl for one in exact]).mean())
    return (
        Found(kl=truth, low=truth, high=truth, positions=SIMULATED_POSITIONS),
        Found(
            kl=means[0], low=means[1], high=means[2], positions=SIMULATED_POSITIONS,
            file_bytes=file.stat().st_size,
        ),
    )  # fmt: skip


def _logprobs(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)


if __name__ == "__main__":
    main()
