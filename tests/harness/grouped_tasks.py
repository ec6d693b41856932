"""Groups with aggregates: nested, weighted by size and not, over subtasks of unequal size."""

from __future__ import annotations

import json
import random
from pathlib import Path

SIZES = {"gr_small": 7, "gr_middle": 19, "gr_large": 40}

_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {files}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{{{text}}}} A:"
doc_to_choice: ["yes", "surely not", "maybe"]
doc_to_target: gold
metric_list: [{{metric: acc}}, {{metric: acc_norm}}, {{metric: mcc}}]
metadata: {{version: 1.0}}
"""

_GROUPS = {
    "gr_twice": """
task: [gr_small, gr_again]
aggregate_metric_list: [{metric: acc}, {metric: acc_norm, weight_by_size: false}, {metric: f1}]
""",
    "gr_again": """
task: [gr_small, gr_middle]
""",
    "gr_inner": """
task: [gr_middle, gr_large]
aggregate_metric_list:
  - {metric: acc, weight_by_size: false}
""",
    "gr_all": """
task: [gr_small, gr_inner]
aggregate_metric_list:
  - {metric: acc, weight_by_size: true}
  - {metric: acc_norm, filter_list: [none], weight_by_size: false}
  - {metric: mcc}
""",
}


def write_groups(folder: Path) -> None:
    """Write the subtasks with their data, and the groups."""
    rng = random.Random(5)
    for name, size in SIZES.items():
        data = folder / f"{name}.jsonl"
        rows = [{"text": f"{name} {i} {rng.random():.3f}", "gold": rng.randrange(3)}
                for i in range(size)]  # fmt: skip
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = json.dumps({"test": str(data)})
        (folder / f"{name}.yaml").write_text(_TASK.format(name=name, files=files).lstrip("\n"))
    for name, body in _GROUPS.items():
        (folder / f"{name}.yaml").write_text(f"group: {name}{body}")
