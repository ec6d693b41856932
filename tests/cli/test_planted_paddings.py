"""No pass among ports that padding breaks: their padded answers are scored, and it is said.

One by one such a port answers as its base does. What padding does is said on the first screen
then, too; that no score moved is true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from unpadded_models import FAULTS, HEALTHY, save_gpt2

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.models.assigned_model import AssignedModel
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

N = 40
_GREEDY: Any = {"until": ["zzz"], "max_gen_toks": 6, "do_sample": False}
_TEXT = "mara carried the lantern down to the harbour because the fog had come in"
FAILS = 1


def write_task(folder: Path, base: Path) -> Path:
    """A task of which the base has every answer right: the texts that it generates."""
    texts = [_TEXT[i % 11 :][: 9 + 12 * (i % 5)] for i in range(N)]
    policy, given = ScoringPolicy(device="cpu"), {"pretrained": str(base), "dtype": "float32"}
    lm = load_lm("hf", given, {}, policy, trust_remote_code=False, allow_pickle=False)
    model = LMScorer(lm, policy, model_type="hf", assigned=AssignedModel(provenance={}))
    asked = [
        Request(task="g", doc_id=i, index=0, kind="generate_until", arguments=(text, _GREEDY))
        for i, text in enumerate(texts)
    ]
    answers = zip(texts, model.score(asked), strict=True)
    rows = [{"text": text, "said": answer.text} for text, answer in answers]
    folder.mkdir()
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = json.dumps({"test": str(folder / "texts.jsonl")})
    (folder / "written.yaml").write_text(
        "task: written\ndataset_path: json\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {files}}}\n"
        'output_type: generate_until\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{said}}"\n'
        "generation_kwargs: {until: [zzz], max_gen_toks: 6, do_sample: false}\n"
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    return folder


@pytest.fixture
def compared(run: Any, tmp_path: Path) -> Any:
    def compare(change: str, *words: str) -> tuple[int, str]:
        base, port = save_gpt2(tmp_path / "base"), save_gpt2(tmp_path / "port", change)
        tasks = write_task(tmp_path / "tasks", base)
        asked = ("--tasks", "written", "--include-path", tasks, "--trust-remote-code")
        ran = run("compare", "--base", base, "--cand", port, *asked, "--margin", "1pp", *words)
        return ran.code, " ".join(f"{ran.out} {ran.err}".split())

    return compare


def each_kind_once(names: Iterable[str], *, first: int) -> list[Any]:
    """The first names, of positions and of masks; the others of their kind are asked at night."""
    return [
        pytest.param(name, marks=[] if place < first else pytest.mark.nightly)
        for place, name in enumerate(names)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fault", each_kind_once(FAULTS, first=2))
def test_a_port_that_padding_breaks_fails_in_padded_batches(fault: str, compared: Any) -> None:
    code, seen = compared(FAULTS[fault], "--batch-size", "8")
    assert code == FAILS, seen
    assert "changes port's answers" in seen, seen


@pytest.mark.slow
def test_one_by_one_its_first_screen_says_what_padding_does(compared: Any) -> None:
    code, seen = compared(FAULTS["positions are counted from the padding"])
    assert code == 0, seen
    assert "changes port's answers" in seen, seen


@pytest.mark.slow
@pytest.mark.parametrize("port", each_kind_once(HEALTHY, first=1))
def test_a_healthy_port_passes_in_padded_batches(port: str, compared: Any) -> None:
    code, seen = compared(HEALTHY[port], "--batch-size", "8", "--strict")
    assert code == 0, seen
    assert "changes port's answers" not in seen, seen
