"""What modules of a quantised candidate win back: the one that costs drift is the best buy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_world import SmallWorld, make_world
from tiny_models import save_llama

import evalguard
from evalguard.bisect.bisect_report import ModulePrice, ModulePrices
from evalguard.bisect.module_prices import PricedModules, measure_prices
from evalguard.bisect.oracle.oracle_opening import open_model_oracle
from evalguard.bisect.subject import Subject, choose_subject
from evalguard.comparison.compare import compare_sides
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.result import CompareResult
from evalguard.config.options import make_options
from evalguard.errors import EvaluationError
from evalguard.recipes.gguf import convert
from evalguard.report.compare_document import read_report

pytestmark = pytest.mark.slow
gguf = pytest.importorskip("gguf")

DEMO = Path(__file__).parents[3]
CULPRIT = "model.layers.2.mlp.up_proj"
F32, Q4_0 = 4.0, 18 / 32  # bytes a weight; a block is 32 of 4 bits and a scale of 16


def rounded(values: Any) -> Any:
    """As a file in Q4_0 has it: int4 in groups of 32; the same where rows are no multiple."""
    if values.shape[1] % 32:
        return values
    kind = gguf.GGMLQuantizationType.Q4_0
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind).reshape(values.shape)


def write_base(model: Path, folder: Path, seed: int) -> Path:
    """A model of which all matrices but the culprit's nearly are what int4 leaves of them."""
    rng = np.random.default_rng(seed)
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        if values.ndim == 2 and not name.startswith(CULPRIT):
            noise = rng.normal(size=values.shape).astype(np.float32)
            tensors[name] = rounded(values) + 1e-4 * values.std() * noise
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_int4(base: Path, folder: Path) -> Path:
    """The same with all matrices in int4, as plain numbers."""
    shutil.copytree(base, folder)
    tensors = load_file(folder / "model.safetensors")
    told = {name: rounded(one) if one.ndim == 2 else one for name, one in tensors.items()}
    save_file(told, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def priced(
    base: Path, candidate: str, tasks: Path, task: str, work: Path, over: Any = "modules"
) -> ModulePrices:
    """The prices of a candidate, which is given as model_args."""
    guard = work / "guard.yaml"
    guard.write_text(
        f"models:\n  orig: {{model_args: {{pretrained: {base}, dtype: float32}}}}\n"
        f"  int4: {{model_args: {{{candidate}, dtype: float32}}}}\n"
    )
    options = make_options(
        None, config=guard, tasks=[task], include_path=[tasks], limit=48, device="cpu", threads=1,
        cache_dir=work / "cache", quiet=True, write=False, bisect="never",
    )  # fmt: skip
    finished = compare_sides("orig", "int4", options, cwd=work)
    rows = PricedModules.of(finished, over)
    assert rows is not None
    return measure_prices(
        rows, finished, worst(finished), announced=1e9, budget=None, say=lambda _: None,
        kept=None, open_oracle=open_model_oracle,
    )  # fmt: skip


def worst(finished: FinishedComparison) -> Subject:
    report = finished.report
    found = choose_subject(
        report.comparisons, report.gate, finished.scored[0].tables, failing_only=False
    )
    assert isinstance(found, Subject)
    return found


def by_modules(found: ModulePrices) -> Mapping[tuple[str, ...], ModulePrice]:
    return {row.modules: row for row in found.rows}


def test_of_an_int4_model_the_module_that_costs_drift_wins_it_back_and_no_other(
    tmp_path: Path,
) -> None:
    base = write_base(DEMO / "demo" / "model", tmp_path / "base", 1)
    candidate = f"pretrained: {write_int4(base, tmp_path / 'int4')}"
    found = priced(base, candidate, DEMO / "tasks", "evalguard_lastword", tmp_path, "layers")
    rows = by_modules(found)
    assert len(rows) == 4 + 7 + 1  # layers, kinds of modules, and the tied embeddings
    assert {*found.proven} == {row for names, row in rows.items() if CULPRIT in names}
    assert {row.name for row in found.rows[:2]} == {"model.layers.2", "mlp.up_proj (all 4)"}
    for row in found.rows:
        assert row.kl is not None
        assert found.kl is not None
        if row in found.proven:
            assert row.kl.low > 0.0
            assert row.kl.amount == pytest.approx(found.kl, rel=0.05)
        else:
            assert row.kl.adjusted_p > found.level
    assert ("model.embed_tokens", "lm_head") in rows  # tied: they are one
    # Plain numbers do not tell what they take once they are packed.
    assert all(row.added_bytes is None for row in found.rows)
    assert "what restoring costs is not known" in found.notes[0]
    assert (found.owner, found.unit, found.documents) == ("", "sigma", 48)


@pytest.mark.data
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(one, marks=pytest.mark.nightly) for one in (2, 3))]
)
def test_of_a_trained_model_in_a_gguf_file_it_is_the_best_buy(
    tmp_path: Path, shared_data: Path, seed: int
) -> None:
    base = write_base(shared_data / "stories260K" / "hf", tmp_path / "base", seed)
    (tmp_path / "q4").mkdir()
    kept = {"*ffn_down*": "F16"}  # rows of 172 have no whole blocks
    convert(tmp_path / "q4" / "model.gguf", str(base), type="Q4_0", overrides=kept)
    candidate = f"pretrained: {tmp_path / 'q4'}, gguf_file: model.gguf, tokenizer: {base}"
    found = priced(base, candidate, write_stories(tmp_path, shared_data), "lastword", tmp_path)
    best = found.rows[0]
    assert best.modules == (CULPRIT,)
    assert best.added_bytes == 172 * 64 * (F32 - Q4_0)
    assert best.kl is not None
    assert best.kl.low > 0.0
    assert best.per_megabyte == pytest.approx(best.kl.amount / best.added_bytes * 1e6)
    assert (found.owner, best.option) == ("llama.cpp", "--tensor-type blk.2.ffn_up=f32")
    (innocent,) = [row for row in found.rows if row.modules == ("model.layers.1.mlp.up_proj",)]
    assert innocent.kl is not None
    assert innocent.kl.low <= 0.0 <= innocent.kl.high
    assert {row.modules for row in found.proven} >= {(CULPRIT,)}
    assert all(CULPRIT in row.modules for row in found.proven)
    assert not any("down_proj" in row.name for row in found.rows)  # it is not quantised


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallWorld, Path]:
    """A world of tiny models, and one of them in int4."""
    folder = tmp_path_factory.mktemp("small")
    world = make_world(folder, save_llama(folder / "orig", tied=False))
    return world, write_int4(world.models["llama"], folder / "int4")


def bisected(small: tuple[SmallWorld, Path], **given: Any) -> CompareResult:
    world, int4 = small
    return evalguard.bisect_settings(
        str(world.models["llama"]), str(int4), tasks=["sw_word"], include_path=[world.tasks],
        device="cpu", threads=1, cache_dir=world.folder / "cache",
        output_path=world.folder / "runs", bisect_over="layers", quiet=True, **given,
    )  # fmt: skip


def test_a_search_over_layers_of_a_quantised_model_ends_with_prices_that_are_stored(
    small: tuple[SmallWorld, Path],
) -> None:
    result = bisected(small)
    found = result.report.bisect
    assert found is not None
    assert found.prices is not None
    assert {"model.layers.0", "mlp.up_proj (all 2)"} <= {row.name for row in found.prices.rows}
    assert result.run_folder is not None
    stored = json.loads((Path(result.run_folder) / "result.json").read_text())
    assert read_report(stored).bisect == found


@pytest.mark.parametrize(
    ("error", "said", "goes_on"),
    [
        (EvaluationError("the disk is full"), "not measured: the disk is full", False),
        (ValueError("a mistake of ours"), "not measured: ValueError: a mistake of ours", False),
        (KeyboardInterrupt(), "not measured: it was interrupted", True),
    ],
)
def test_what_was_searched_stands_where_prices_cannot_be_measured(
    small: tuple[SmallWorld, Path],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    said: str,
    goes_on: bool,
) -> None:
    def fails(*_: Any, **__: Any) -> ModulePrices:
        raise error

    monkeypatch.setattr("evalguard.bisect.bisection.measure_prices", fails)
    found = bisected(small).report.bisect
    assert found is not None
    assert found.prices is None
    assert found.status != "stopped"
    assert said in found.notes[-1]
    assert ("--resume" in found.resume) is goes_on


def test_a_budget_that_is_spent_leaves_nothing_for_prices(
    small: tuple[SmallWorld, Path],
) -> None:
    found = bisected(small, bisect_budget=6.0).report.bisect
    assert found is not None
    assert found.prices is None or found.prices.evaluations <= 6.0 - found.evaluations


def write_stories(folder: Path, shared_data: Path) -> Path:
    """A task: the last word of short stories."""
    lines = (shared_data / "stories260K" / "tinystories_lastword.jsonl").read_text().splitlines()
    split = [json.loads(line)["text"].rpartition(" ") for line in lines[:96:2]]
    rows = [{"context": context, "target": f" {word}"} for context, _, word in split]
    file = folder / "documents.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = folder / "tasks"
    place.mkdir()
    (place / "lastword.yaml").write_text(
        f"task: lastword\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\n"
        "test_split: test\noutput_type: loglikelihood\ndoc_to_text: '{{context}}'\n"
        "doc_to_target: '{{target}}'\nmetric_list:\n"
        "  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}\n"
        "metadata: {version: 1.0}\n"
    )
    return place
