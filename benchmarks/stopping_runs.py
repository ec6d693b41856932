"""Full runs of real conversions, whose score tables benchmarks/stopping.py puts into many orders.

    python -m benchmarks.stopping_runs runs
    python -m benchmarks.stopping --runs $(dirname $(find runs -name result.json))

The demo's model against its port, whole and with one of its settings at a time; stories260K, where
``--shared-data`` is at hand, against bfloat16, int8 and int4 weights, on two last-word tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import evalguard
from benchmarks.quantised import GROUP, quantised_copy

ROOT = Path(__file__).parent.parent
DEMO_SETTINGS = ("norm_dtype", "attn_scale", "rope_theta")
# File, prompt and last word of each task.
TASKS = {
    "stories_lastword": (
        "stories260K/tinystories_lastword.jsonl",
        "{{text.split(' ')[:-1]|join(' ')}}",
        "{{' '+text.split(' ')[-1]}}",
    ),
    "lambada_lastword": (
        "lambada/lambada_openai.jsonl",
        "{{context}}",
        "{{' '+continuation.strip()}}",
    ),
}


def main() -> None:
    """Make the runs in a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the run folders go")
    parser.add_argument("--shared-data", type=Path, help="folder with stories260K and lambada",
                        default=os.environ.get("EVALGUARD_SHARED_DATA", ROOT.parent / "shared/data"))  # fmt: skip # noqa: E501
    options = parser.parse_args()
    demo_runs(options.folder)
    if Path(options.shared_data).is_dir():
        stories_runs(options.folder, Path(options.shared_data))


def demo_runs(folder: Path) -> None:
    """The port with all its settings, and with one at a time."""
    guard = ROOT / "configs" / "demo.yaml"
    evalguard.compare("orig", "fla-port", config=guard, output_path=folder)
    names = evalguard.compare("orig", "fla-port", config=guard, write=False, limit=2)
    settings = [setting.name for setting in names.report.candidate.settings]
    for one in DEMO_SETTINGS:
        values = {name: "candidate" if name == one else "reference" for name in settings}
        evalguard.compare(
            "orig", "fla-port", config=guard, cand_set=values, output_path=folder / one
        )


def stories_runs(folder: Path, data: Path) -> None:
    """Rounded weights of a small trained model."""
    tasks, model = folder / "tasks", folder / "models" / "stories260K"
    shutil.copytree(data / "stories260K" / "hf", model)
    tasks.mkdir(parents=True, exist_ok=True)
    for name, (file, text, target) in TASKS.items():
        written = _task(name, data / file, text, target)
        (tasks / f"{name}.yaml").write_text(written, encoding="utf-8")
    candidates = {
        "int8": quantised_copy(model, folder / "models" / "int8", bits=8, group=None),
        "int4": quantised_copy(model, folder / "models" / "int4", bits=4, group=GROUP),
        "bf16": Path(shutil.copytree(model, folder / "models" / "bf16")),
    }
    for name, candidate in candidates.items():
        evalguard.compare(
            model,
            candidate,
            tasks=tuple(TASKS),
            include_path=(tasks,),
            base_model_args={"dtype": "float32"},
            cand_model_args={"dtype": "bfloat16" if name == "bf16" else "float32"},
            output_path=folder / name,
        )


def _task(name: str, file: Path, text: str, target: str) -> str:
    return f"""
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {json.dumps(str(file))}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{text}"
doc_to_target: "{target}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


if __name__ == "__main__":
    main()
