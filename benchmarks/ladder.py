"""The ladder: GGUF files of seven types by llama.cpp, torchao's int8 and int4, bitsandbytes' nf4,
against the checkpoint that they were made of.

    python -m benchmarks.ladder [--shared-data FOLDER] [--limit N] [--output FILE] [--page FILE]

Of the demo's model, and of stories260K where ``--shared-data`` is at hand. Every rung is built by a
recipe of evalguard and runs in an environment of its own (``--cache-dir`` keeps them); a rung that
cannot be made has no verdict, with the reason. The steps from the checkpoint over F16 to each other
GGUF file say how much of its KL is the engine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.output import deliver
from evalguard import compare_several
from evalguard.several.several_run import SeveralResult

_ROOT = Path(__file__).parent.parent
_GGUF = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors", "numpy")
_TORCH = ("torch==2.13.0", "transformers==5.23.0")
# As in tests/systems, so that one environment is made for both.
_QUANTISERS = (
    *_TORCH, "accelerate", "bitsandbytes==0.50.2", "optimum-quanto==0.2.7",
    "compressed-tensors==0.20.0",
)  # fmt: skip
_GGUF_RUNGS = {
    "f16": "F16", "q8_0": "Q8_0", "q6_K": "Q6_K", "q5_K": "Q5_K", "q4_K": "Q4_K", "q4_0": "Q4_0",
    "q3_K": "Q3_K",
}  # fmt: skip
_GROUP = 32
_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A model whose rungs are compared, and what they are asked."""

    name: str
    folder: Path
    tasks: tuple[str, ...]
    include: Path


def guard_models(folder: Path) -> dict[str, Any]:
    """Return the models of a guard file: the checkpoint and its rungs."""
    models: dict[str, Any] = {"orig": {"model_args": _args(folder)}}
    for name, kind in _GGUF_RUNGS.items():
        build = {
            "call": "evalguard.recipes.gguf:convert",
            "output": "model.gguf",
            "inputs": {"source": str(folder), "type": kind},
        }
        above = {} if name == "f16" else {"extends": "f16"}
        own = {"model": "llama_cpp", "requirements": list(_GGUF), "build": build}
        models[name] = {**above, **own}
    for name, inputs in _torchao_inputs(folder).items():
        models[name] = {
            "model_args": {"dtype": "float32"},
            "requirements": [*_TORCH, "torchao==0.18.0"],
            "build": {
                "call": "evalguard.recipes.torchao:quantise",
                "inputs": {"source": str(folder), **inputs},
            },
        }
    models["nf4"] = {
        "model_args": {**_args(folder), "quantization_config": _NF4},
        "requirements": list(_QUANTISERS),
    }
    return models


def _torchao_inputs(folder: Path) -> dict[str, dict[str, Any]]:
    """int8 by rows; int4 in groups of 32 where those divide the rows, else by rows."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes = (config["hidden_size"], config["intermediate_size"])
    grouped = not any(size % _GROUP for size in sizes)
    granularity = {"PerGroup": _GROUP} if grouped else {"PerAxis": 0}
    four = {"weight_dtype": "int4", "granularity": granularity}
    return {
        "ao-int8": {"config": "Int8WeightOnlyConfig"},
        "ao-int4": {"config": "IntxWeightOnlyConfig", "arguments": four},
    }


def stories_ladder(shared_data: Path, place: Path) -> Ladder:
    """The trained model, asked for the last words of its passages and for whole passages.

    Args:
        place: an empty folder for its tasks.
    """
    data = shared_data / "stories260K"
    source = json.dumps(str(data / "tinystories_lastword.jsonl"))
    both = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {source}}}}}\n"
    both += "test_split: test\n"
    (place / "words.yaml").write_text(
        f"task: stories_lastword\n{both}output_type: loglikelihood\n"
        "doc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\n"
        "doc_to_target: \"{{' '+text.split(' ')[-1]}}\"\n"
        "metric_list:\n"
        "  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}\n"
        "  - {metric: acc, aggregation: mean, higher_is_better: true}\n",
        encoding="utf-8",
    )
    (place / "texts.yaml").write_text(
        f"task: stories_rolling\n{both}output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: "{{text}}"\n'
        "metric_list:\n  - {metric: byte_perplexity}\n",
        encoding="utf-8",
    )
    return Ladder(
        name="stories260K",
        folder=data / "hf",
        tasks=("stories_lastword", "stories_rolling"),
        include=place,
    )


def _args(folder: Path) -> dict[str, Any]:
    return {"pretrained": str(folder), "dtype": "float32"}


def measure_ladder(ladder: Ladder, cache_dir: Path, *, limit: int | None) -> SeveralResult:
    """Compare every rung with the checkpoint."""
    models = guard_models(ladder.folder)
    guard = {
        "models": models,
        "tasks": list(ladder.tasks),
        "include_path": str(ladder.include),
        "run": {"bisect": "never", "distributions": "reference"},
    }
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "ladder.yaml"
        file.write_text(yaml.safe_dump(guard, sort_keys=False), encoding="utf-8")
        return compare_several(
            "orig",
            [name for name in models if name != "orig"],
            config=file,
            limit=limit,
            cache_dir=cache_dir,
            write=False,
            track=("none",),
        )


def introduction(limit: int | None) -> Iterator[str]:
    """Yield how the tables were made, and what is to be known of them."""
    documents = "all documents" if limit is None else f"the first {limit:,} documents"
    yield "# The ladder: which quantisation, at what size, at what cost\n"
    option = "" if limit is None else f"--limit {limit} "
    yield (
        f"`python -m benchmarks.ladder {option}--shared-data ../shared/data --output "
        "benchmarks/results/ladder.md --page benchmarks/results/ladder_page.html`\n"
    )
    yield (
        f"Against the checkpoint in float32, {documents} of each task, KL by a reference of the "
        "base (its 64 most probable tokens and draws of the rest). GGUF: every matrix has the one "
        "type, rounded by ggml, run by llama.cpp (xllamacpp 2026.10.11549), without an importance "
        "matrix. Rows of these models are short (128 and 256 weights, 64 and 172), so that "
        "K-quants give way by llama.cpp's rules: most of q6_K is Q8_0, of q5_K Q5_1, of q4_K "
        "Q5_0, of q3_K Q4_0, and rows of 172 are F16 in every quantised file. torchao keeps "
        "embeddings in float32 and int4 in bytes; nf4 is made while loading, so that its size is "
        "the checkpoint's. "
        "Passages of stories260K that come from one story count as independent here. The page "
        "of the demo's model: [ladder_page.html](ladder_page.html).\n"
    )


def report_ladder(ladder: Ladder, result: SeveralResult) -> Iterator[str]:
    """Yield the section of one model: its table at 80 columns, then all of it."""
    yield f"## {ladder.name}\n"
    yield "```text"
    yield result.render(width=80).split("\nMore: ")[0].split("\nNext")[0].rstrip()
    yield "```\n"
    for line in result.rendered("markdown").splitlines():
        if line.startswith("| step |"):
            yield f"\nSteps, in standard errors of {result.report.base}:\n"
        if line.startswith("|"):
            yield line
    yield ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared-data", type=Path, help="folder with stories260K")
    parser.add_argument(
        "--cache-dir", type=Path, default=Path.home() / ".cache" / "evalguard-systems"
    )
    parser.add_argument("--limit", type=int, help="documents of each task")
    parser.add_argument("--output", type=Path, help="file of the table")
    parser.add_argument("--page", type=Path, help="HTML file of the demo's model")
    given = parser.parse_args(arguments)
    demo = Ladder(
        name="The demo's model",
        folder=_ROOT / "demo" / "model",
        tasks=("evalguard_lastword", "evalguard_rolling"),
        include=_ROOT / "tasks",
    )
    lines = list(introduction(given.limit))
    with tempfile.TemporaryDirectory() as place:
        ladders = [demo]
        if given.shared_data:
            ladders.append(stories_ladder(given.shared_data.resolve(), Path(place)))
        for ladder in ladders:
            result = measure_ladder(ladder, given.cache_dir, limit=given.limit)
            if ladder is demo and given.page:
                given.page.write_text(result.rendered("html"), encoding="utf-8")
            lines += report_ladder(ladder, result)
    deliver(lines, given.output)


if __name__ == "__main__":
    main()
