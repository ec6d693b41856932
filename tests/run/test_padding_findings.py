"""A model whose answers padding changes, and not the base's, is told so, however it is scored.

Whole comparisons, padded and one by one: tests/cli/test_planted_paddings.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unpadded_models import FAULTS, HEALTHY, save_gpt2

import evalguard
from evalguard.comparison.checks.padding_changes import find_padding_changes
from evalguard.core.findings import Finding
from evalguard.core.scorer import ModelDescription, PaddingEffect
from evalguard.tracing.trace_page import render_trace
from evalguard.tracing.trace_report import TraceReport, read_trace, trace_document

NAMES = ("base", "port")


def described(
    left: float = 1e-6, right: float = 1e-6, *, limit: float = 0.01, state: bool = False,
    size: int | None = None,
) -> ModelDescription:  # fmt: skip
    effect = PaddingEffect(left=left, right=right, limit=limit, keeps_state=state)
    return ModelDescription(model_type="hf", padding=effect, computation={"batch_size": size})


UNKNOWN = ModelDescription(model_type="local-completions")


def found(base: ModelDescription | None, port: ModelDescription | None) -> tuple[Finding, ...]:
    return find_padding_changes(base, port, NAMES)


def test_the_candidates_change_is_said_with_its_size() -> None:
    (told,) = found(described(), described(0.83))
    assert told.kind == "padding_changes"
    assert "changes port's answers by up to 0.83 nats a token, not base's" in told.text
    assert "--batch-size 8 pads" in told.text
    assert told.values["left_nats"] == 0.83
    assert told.values["other_left_nats"] == 1e-6


def test_padded_batches_that_were_asked_for_are_said() -> None:
    (told,) = found(described(size=8), described(0.83, size=8))
    assert "generated padded, as --batch-size 8 asks" in told.text
    (alone,) = found(described(size=1), described(0.83, size=1))
    assert "one by one" in alone.text


def test_a_text_that_sees_what_follows_it_is_said_to_have_no_causal_mask() -> None:
    (told,) = found(described(), described(right=0.4))
    assert "behind a text" in told.text
    assert "no causal mask" in told.text


@pytest.mark.parametrize(
    ("base", "port"),
    [
        (described(), described()),
        (described(9e-3), described(9.9e-3)),
        (described(1.5, state=True), described(1.7, state=True)),
        (described(0.1, limit=0.3), described(0.35, limit=0.3)),
        (None, described()),
        (None, described(1.5, state=True)),
        (described(), None),
        (UNKNOWN, UNKNOWN),
        (None, None),
    ],
)
def test_rounding_and_what_both_do_are_not_told(
    base: ModelDescription | None, port: ModelDescription | None
) -> None:
    assert found(base, port) == ()


def test_the_base_may_be_the_one_that_padding_changes() -> None:
    (told,) = found(described(2.0), described())
    assert "changes base's answers by up to 2 nats a token, not port's" in told.text
    assert told.values["side"] == "base"


def test_of_a_base_that_is_not_there_nothing_is_said_to_be_known() -> None:
    for base in (None, UNKNOWN):
        (told,) = found(base, described(0.83))
        assert "of base that is not known" in told.text


def test_numbers_that_json_cannot_hold_are_left_out() -> None:
    (told,) = found(described(), described(float("nan")))
    assert told.values["left_nats"] is None


def write_task(folder: Path) -> Path:
    folder.mkdir()
    text = "mara carried the lantern down to the harbour because the fog had come in"
    rows = [{"text": text[i % 5 :][: 9 + 24 * (i % 3)]} for i in range(24)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = json.dumps({"test": str(folder / "texts.jsonl")})
    (folder / "written.yaml").write_text(
        "task: written\ndataset_path: json\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {files}}}\n"
        'output_type: generate_until\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{text}}"\n'
        "generation_kwargs: {until: [zzz], max_gen_toks: 6, do_sample: false}\n"
        "metric_list: [{metric: bleu}]\n"
    )
    return folder


def trace(tmp_path: Path, change: str) -> TraceReport:
    base = save_gpt2(tmp_path / "base")
    port = save_gpt2(tmp_path / "port", change)
    return evalguard.trace(
        base, port, tasks=["written"], include_path=[write_task(tmp_path / "tasks")], limit=1,
        write=False, trust_remote_code=True, device="cpu", quiet=True, swap=0,
        cache_dir=tmp_path / "cache",
    ).report  # fmt: skip


def test_a_trace_names_where_padding_enters(tmp_path: Path) -> None:
    report = trace(tmp_path, FAULTS["positions are counted from the padding"])
    assert report.exit_code == 1
    assert report.padded is not None
    assert report.padded.module == "transformer.wpe"
    screen = " ".join(render_trace(report, width=80).split())
    assert screen.startswith("LOCATED: padding changes the candidate's answers by up to")
    assert "it enters at transformer.wpe" in screen
    assert "--batch-size 8" in screen
    assert read_trace(json.loads(json.dumps(trace_document(report)))).padded == report.padded


def test_a_trace_of_a_healthy_port_passes(tmp_path: Path) -> None:
    report = trace(tmp_path, HEALTHY["positions from the mask"])
    assert (report.exit_code, report.padded) == (0, None)
