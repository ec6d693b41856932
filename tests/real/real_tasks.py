"""lm-eval tasks over the shared data: only the YAML is written, the data stays where it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

LAST_WORD, LAMBADA, ROLLING = "real_lastword", "real_lambada", "real_rolling"
CHOICES = ("real_arc_easy", "real_piqa", "real_winogrande")
LIKELIHOOD = (LAST_WORD, LAMBADA, *CHOICES)

_PERPLEXITY_AND_ACC = """
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
_ACC = """
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
_BODIES = {
    LAST_WORD: r"""
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
"""
    + _PERPLEXITY_AND_ACC,
    LAMBADA: r"""
output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{' '+continuation}}"
"""
    + _PERPLEXITY_AND_ACC,
    "real_arc_easy": r"""
output_type: multiple_choice
doc_to_text: "{{query}}\nAnswer:"
doc_to_choice: choices
doc_to_target: gold
"""
    + _ACC,
    "real_piqa": r"""
output_type: multiple_choice
doc_to_text: "Question: {{query.strip()}}\nAnswer:"
doc_to_choice: choices
doc_to_target: gold
"""
    + _ACC,
    # lm-eval's partial evaluation: the choices are contexts, the continuation is shared
    "real_winogrande": r"""
output_type: multiple_choice
doc_to_text: gold
doc_to_choice: context_options
doc_to_target: continuation
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    ROLLING: r"""
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: byte_perplexity}
  - {metric: bits_per_byte}
""",
}
_SECTION = re.compile(r"\n \n(?= = )")  # WikiText's headings: " = Title = ", " = = Part = = "
_EVERY = 36
_LONGEST_CHOICE = 800  # characters; two of PIQA's do not fit a context of 512 tokens


def write_tasks(folder: Path, shared_data: Path) -> Path:
    """Write every task's YAML, every 36th section of WikiText as a document, and PIQA's questions
    whose choices fit the model's context (lm-eval asserts that they do).
    """
    text = (shared_data / "wikitext2" / "wiki.test.raw").read_text(encoding="utf-8")
    sections = [part for part in _SECTION.split(text) if part.strip()][::_EVERY]
    rolling = folder / "wikitext2.jsonl"
    rolling.write_text("".join(json.dumps({"text": part}) + "\n" for part in sections))
    choice = shared_data / "multiple_choice"
    questions = (choice / "piqa.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    piqa = folder / "piqa.jsonl"
    piqa.write_text("".join(question for question in questions if _fits(question)))
    files = {
        LAST_WORD: shared_data / "stories260K" / "tinystories_lastword.jsonl",
        LAMBADA: shared_data / "lambada" / "lambada_openai.jsonl",
        **{name: choice / f"{name.removeprefix('real_')}.jsonl" for name in CHOICES},
        "real_piqa": piqa,
        ROLLING: rolling,
    }
    for name, body in _BODIES.items():
        data = json.dumps({"test": str(files[name])})
        head = f"task: {name}\ntest_split: test\ndataset_path: json\n"
        head += f"dataset_kwargs: {{data_files: {data}}}\n"
        (folder / f"{name}.yaml").write_text(head + body.lstrip("\n"))
    return folder


def _fits(question: str) -> bool:
    return all(len(choice) <= _LONGEST_CHOICE for choice in json.loads(question)["choices"])
