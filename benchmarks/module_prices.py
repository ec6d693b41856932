"""What modules of a trained model win back at the base's precision, and what their options do.

    python -m benchmarks.module_prices --output benchmarks/results/module_prices.md

The stories model of ../shared/data in Q4_0 (int4 in groups of 32): its table of prices; then each
of the best rows by itself, written anew with the types that its option asks for. And int4 in the
MLP of one layer only, as plain numbers: which rows are told from none.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.trained_models import STORIES, TASK, Trained, trained
from evalguard.bisect.bisect_report import ModulePrice, ModulePrices
from evalguard.bisect.module_prices import PricedModules, measure_prices
from evalguard.bisect.oracle.oracle_opening import open_model_oracle
from evalguard.bisect.subject import Subject, choose_subject
from evalguard.comparison.compare import compare_sides
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.config.options import make_options
from evalguard.core.amounts import size_text
from evalguard.recipes.gguf import convert

DAMAGED = 2  # the layer whose MLP is in int4 in the second model
_GROUP, _TOP = 32, 7


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="module-prices-") as folder:
        work = Path(folder)
        text = _page(trained(STORIES, work, documents=given.documents), work)
    if given.output is None:
        sys.stdout.write(text)
    else:
        given.output.write_text(text, encoding="utf-8")


def _page(model: Trained, work: Path) -> str:
    whole = _prices(model, _write_gguf(model, work / "q4", {}), work)
    best = enumerate(whole.proven[:3])
    kept = [(row, _kept(model, row, whole, work, f"keeping-{n}")) for n, row in best]
    damaged = _prices(model, _write_damaged(model, work / "damaged"), work)
    parts = [
        "# What modules win back at the base's precision",
        "`python -m benchmarks.module_prices --output benchmarks/results/module_prices.md`: a "
        "trained Llama of 260,000 weights and 5 layers, last words of short stories.",
        "## All in Q4_0",
        _facts(whole),
        _table(whole),
        "Its 5 layers and its embeddings win back "
        f"{_sum(whole):.4f} nats one at a time; together it is all that there is to win back, "
        f"{whole.kl:.4f}: effects do not add up.",
        "The best three, each in a file written anew with the types of its option:",
        _kept_table(kept),
        f"## int4 in groups of {_GROUP} in the MLP of layer {DAMAGED} only, as plain numbers",
        _facts(damaged),
        _table(damaged),
    ]
    return "\n\n".join(parts) + "\n"


def _write_gguf(model: Trained, folder: Path, overrides: Mapping[str, str]) -> str:
    """A Q4_0 file; returns model_args."""
    folder.mkdir()
    convert(folder / "model.gguf", str(model.model), type="Q4_0", overrides=overrides)
    return f"pretrained: {folder}, gguf_file: model.gguf, tokenizer: {model.model}"


def _write_damaged(model: Trained, folder: Path) -> str:
    """A copy with one MLP in int4; returns model_args."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(model.model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        if name.startswith(f"model.layers.{DAMAGED}.mlp."):
            tensors[name] = _rounded(values)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return f"pretrained: {folder}"


def _rounded(values: Any) -> Any:
    """Symmetric int4; the last group of a row has what is left of it."""
    found = np.empty_like(values)
    for begin in range(0, values.shape[1], _GROUP):
        part = values[:, begin : begin + _GROUP]
        step = np.maximum(np.abs(part).max(axis=1, keepdims=True) / _TOP, 1e-12)
        found[:, begin : begin + _GROUP] = np.round(part / step) * step
    return found


def _compared(model: Trained, candidate: str, work: Path) -> FinishedComparison:
    guard = work / "guard.yaml"
    guard.write_text(
        f"models:\n  base: {{model_args: {{pretrained: {model.model}, dtype: float32}}}}\n"
        f"  int4: {{model_args: {{{candidate}, dtype: float32}}}}\n"
    )
    options = make_options(
        None, config=guard, tasks=[TASK], include_path=[model.tasks], device="cpu", threads=1,
        cache_dir=work / "cache", quiet=True, write=False, bisect="never",
    )  # fmt: skip
    return compare_sides("base", "int4", options, cwd=work)


def _prices(model: Trained, candidate: str, work: Path) -> ModulePrices:
    finished = _compared(model, candidate, work)
    report = finished.report
    subject = choose_subject(
        report.comparisons, report.gate, finished.scored[0].tables, failing_only=False
    )
    assert isinstance(subject, Subject)
    rows = PricedModules.of(finished, "layers")
    assert rows is not None
    return measure_prices(
        rows, finished, subject, announced=1e9, budget=None, say=print, kept=None,
        open_oracle=open_model_oracle,
    )  # fmt: skip


def _kept(
    model: Trained, row: ModulePrice, whole: ModulePrices, work: Path, place: str
) -> tuple[float, int]:
    """KL won back, and bytes added, where a row's option is used in writing the file."""
    kept = work / place
    candidate = _write_gguf(model, kept, dict.fromkeys(_patterns(row.option), "F32"))
    found = _compared(model, candidate, work).report.distributions[0].kl.value
    assert found is not None
    assert whole.kl is not None
    sizes = [(one / "model.gguf").stat().st_size for one in (kept, work / "q4")]
    return whole.kl - found, sizes[0] - sizes[1]


def _patterns(option: str) -> list[str]:
    """The tensors of an option of llama-quantize, as the recipe's patterns name them."""
    words = option.replace("'", "").split()
    found = []
    for name, value in zip(words[::2], words[1::2], strict=True):
        own = {
            "--token-embedding-type": "token_embd.weight",
            "--output-tensor-type": "output.weight",
        }
        found.append(own.get(name, f"*{value.partition('=')[0].replace('[.]', '.')}*"))
    return found


def _facts(found: ModulePrices) -> str:
    return (
        f"KL {found.kl:.4f} nats, {found.drift:+.2f} {found.unit} of {found.metric}; "
        f"{found.documents} documents; {len(found.proven)} of {len(found.rows)} rows are told from "
        f"none{''.join(f'; {one}' for one in found.notes)}."
    )


def _table(found: ModulePrices) -> str:
    lines = ["| restored | adds | KL back | per MB | sigma back | p (Holm) | option |",
             "|---|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    for row in found.rows:
        assert row.kl is not None
        assert row.metric is not None
        cost = "?" if row.added_bytes is None else size_text(row.added_bytes)
        each = "-" if row.per_megabyte is None else f"{row.per_megabyte:.3f}"
        numbers = [
            f"{one.amount:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"
            for one, digits in ((row.kl, 4), (row.metric, 2))
        ]
        option = f"`{row.option}`" if row.option else "-"
        lines.append(
            f"| {row.name} | {cost} | {numbers[0]} | {each} | {numbers[1]} | "
            f"{row.kl.adjusted_p:.1g} | {option} |"
        )
    return "\n".join(lines)


def _sum(found: ModulePrices) -> float:
    """What layers and embeddings win back, each alone: together they are every module once."""
    once = [row for row in found.rows if "all" not in row.name]
    return sum(row.kl.amount for row in once if row.kl is not None)


def _kept_table(kept: list[tuple[ModulePrice, tuple[float, int]]]) -> str:
    lines = ["| option | adds, as said | as written | KL back, as said | as measured |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    for row, (kl, size) in kept:
        assert row.kl is not None
        lines.append(
            f"| `{row.option}` | {row.added_bytes:,} | {size:,} | {row.kl.amount:.4f} | {kl:.4f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
