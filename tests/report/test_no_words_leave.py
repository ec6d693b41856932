"""No words of documents leave this machine: every kind of finding, sent to every sink."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from example_nights import a_night
from example_reports import comparison, failed, report
from whole_report import WHOLE
from written_runs import N, Row, WrittenRun, answer, healthy_run, rehash, texts_of, write_texts

import evalguard
from evalguard.core.broken_documents import AskedText, broken_document, broken_findings
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import Finding, FindingKind, Quote, without_quotes
from evalguard.core.gate import Gate
from evalguard.core.generation_comparison import FirstDifference, FirstDifferences
from evalguard.core.scores import NotCompared
from evalguard.errors import EvaluationError, MisalignedRunsError
from evalguard.harness.surroundings import task_code
from evalguard.models.description import format_chat
from evalguard.models.failures import explain_failures
from evalguard.nights.night_page import night_mail, night_markdown
from evalguard.publish.forges import show_result
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracked_comparison import build_tracked_run
from evalguard.publish.tracking import send_run
from evalguard.report.compare_document import compare_document
from evalguard.report.formats import RENDERINGS, render_report
from evalguard.several.card import read_model_card
from evalguard.several.several_page import SEVERAL_FORMATS
from evalguard.several.several_report import SeveralReport

CANARY = "zyzzyva"
KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
PUBLISHED = ("markdown", "junit", "annotations")
STAY_HERE = ("text", "json", "html")


def quotes(doc_id: int = 7) -> tuple[Quote, ...]:
    """One of everything that is quoted."""
    return (
        Quote(what="prompt", side="base", text=f"a {CANARY} in a prompt"),
        Quote(what="answer", side="candidate", doc_id=doc_id, text=f"{CANARY} answers"),
        Quote(what="text", doc_id=doc_id, text=f"{CANARY} ends"),
        Quote(what="message", text=f"ValueError: {CANARY}"),
    )


def finding(kind: FindingKind) -> Finding:
    """A finding of a kind that quotes everything, in its values too."""
    return Finding(
        kind=kind,
        text=f"what a {kind} says of document 7",
        task="lambada",
        metric="acc",
        values={"doc_id": 7, "text": f"{CANARY} ends"},
        quotes=quotes(),
    )


BROKEN = broken_document(
    "lambada",
    7,
    [AskedText(base=-1.0, candidate=-900.0, text=f"{CANARY} ends", prompt=f"so {CANARY}")],
)
assert BROKEN is not None
DIFFERENCES = FirstDifferences(
    n=9,
    differ=3,
    placed=3,
    position=2.0,
    examples=(
        FirstDifference(
            position=2,
            doc_id=7,
            before=f"{CANARY} a",
            base_text=CANARY,
            candidate_text=f"b{CANARY}",
        ),
    ),
)
COMPARISONS = (comparison(), failed(metric="acc", reason="no number", quotes=quotes()))
EVERYTHING = report(
    *COMPARISONS,
    gate=None,
    findings=(*map(finding, KINDS), *broken_findings([BROKEN])),
    broken_documents=(BROKEN,),
    not_compared=(NotCompared(task="t", metric="f1", reason="it fails", quotes=quotes()),),
    generations=tuple(replace(one, first_difference=DIFFERENCES) for one in WHOLE.generations),
)
EVERYTHING = replace(EVERYTHING, gate=Gate().judge(COMPARISONS, (), [BROKEN]))


def holds(text: str | bytes) -> bool:
    data = text.encode() if isinstance(text, str) else text
    return CANARY.encode() in data


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """The report as ``--json`` prints it."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(compare_document(EVERYTHING)), encoding="utf-8")
    return path


def test_on_this_machine_every_finding_shows_what_it_quotes() -> None:
    for kind in STAY_HERE:
        assert holds(render_report(EVERYTHING, kind)), kind
    assert all(holds(one.line) for one in EVERYTHING.findings)
    assert not any(holds(one.sentence) for one in EVERYTHING.findings)


def test_every_format_either_stays_here_or_is_made_to_be_published() -> None:
    assert {*RENDERINGS} == {*SEVERAL_FORMATS} == {*PUBLISHED, *STAY_HERE}


@pytest.mark.parametrize("chosen", PUBLISHED)
def test_what_is_made_to_be_published_says_everything_and_quotes_nothing(chosen: Any) -> None:
    shown = render_report(EVERYTHING, chosen)
    assert not holds(shown)
    assert "document 7" in shown
    if chosen != "annotations":
        assert all(f"what a {kind} says" in shown.replace("\\", "") for kind in KINDS)
    several = SeveralReport(base="orig", candidates=(EVERYTHING,))
    assert not holds(SEVERAL_FORMATS[chosen](several))


def test_a_job_and_its_comments_get_no_words(result: Path) -> None:
    shown = show_result(result, marker="<!-- m -->")
    assert not holds(repr(asdict(shown)))
    assert "document 7" in shown.summary
    assert "document 7" in shown.comment


@pytest.mark.parametrize("name", ["card.md", "index.yaml", "badge.svg"])
def test_a_card_gets_no_words(result: Path, tmp_path: Path, name: str) -> None:
    read_model_card([result]).write([tmp_path / name])
    written = [path for path in tmp_path.iterdir() if path != result]
    assert written
    assert not any(holds(path.read_bytes()) for path in written)


def test_a_tracked_run_has_notes_with_their_subject_and_no_words() -> None:
    run = build_tracked_run(EVERYTHING)
    assert not holds(repr(asdict(run)))
    notes = run.summary["notes"].splitlines()
    assert notes[0] == f"lambada acc: what a {KINDS[0]} says of document 7"
    assert holds(build_tracked_run(EVERYTHING, documents=True).summary["notes"])


def test_a_night_that_is_sent_has_no_words() -> None:
    night = a_night()
    pair = replace(night.pairs[0], findings=EVERYTHING.findings, state="passed")
    night = replace(night, pairs=(pair,), changes=night.changes[:1])
    assert "lambada acc: what a same_model says" in " ".join(night_mail(night).split())
    assert not holds(night_mail(night) + night_markdown(night) + repr(pair.doubts))


@pytest.fixture
def no_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder in which trackers keep what they are given."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no-settings"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["wandb", "mlflow", "trackio"])
def test_no_byte_that_a_tracker_keeps_is_a_word_of_a_document(no_trackers: Path, sink: str) -> None:
    bounds = SendingLimits(start=120, init=60, finish=120)
    sent = send_run(sink, build_tracked_run(EVERYTHING), folder=no_trackers, bounds=bounds)
    assert sent.state in ("sent", "offline"), sent.reason
    kept = [path.read_bytes() for path in no_trackers.rglob("*") if path.is_file()]
    assert any(b"what a says_nothing says of document 7" in data for data in kept)
    assert not any(map(holds, kept))


@pytest.mark.slow
def test_no_byte_of_a_wandb_run_is_the_name_of_this_machine(
    no_trackers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_trackers / "sitecustomize.py").write_text(
        "import socket\nsocket.gethostname = lambda: 'quokka-17.example'\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(no_trackers))
    bounds = SendingLimits(start=120, init=60, finish=120)
    folder = no_trackers / "reports"
    sent = send_run("wandb", build_tracked_run(WHOLE), folder=folder, bounds=bounds)
    assert sent.state == "offline", sent.reason
    kept = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert any(b"evalguard_lastword" in data for data in kept)
    assert not any(b"quokka" in data for data in kept)
    name = socket.gethostname().encode()
    assert len(name) < 6 or not any(name in data for data in kept)


# What the pipeline itself says of finished runs in which every text has a canary.

Change = Callable[[WrittenRun, WrittenRun], None]


def with_canaries(value: Any) -> Any:
    """A value of a row with a canary at the beginning of every text, behind its BOS."""
    if isinstance(value, str) and value.startswith("<s>"):
        return f"<s>{with_canaries(value[3:])}"
    if isinstance(value, str):
        words = any(map(str.isalpha, value)) and value not in ("True", "False", "[invalid]")
        return f"{CANARY} {value}" if words else value
    if isinstance(value, list):
        return [with_canaries(one) for one in value]
    if isinstance(value, dict):
        own = ("until", "max_gen_toks")
        return {name: one if name in own else with_canaries(one) for name, one in value.items()}
    return value


def plant(run: WrittenRun) -> None:
    for task in run.tasks.values():
        for row in task.rows:
            names = ["doc", "target", "arguments"]
            names += ["resps"] if task.config["output_type"] == "generate_until" else []
            row.update({name: with_canaries(row[name]) for name in names})
            rehash(row)


def break_documents(base: WrittenRun, candidate: WrittenRun) -> None:
    for row in candidate.tasks["words"].rows[3:5]:
        answer(row, "-inf")
    for row in candidate.tasks["texts"].rows[3:5]:
        answer(row, -90_000.0)


def prompt(row: Row, change: Callable[[str], str]) -> None:
    for one in row["arguments"].values():
        one["arg_0"] = change(one["arg_0"])
    rehash(row)


def change_prompts(base: WrittenRun, candidate: WrittenRun) -> None:
    for row in candidate.tasks["words"].rows:
        prompt(row, lambda text: f"A {CANARY} before. {text}")
    for run, system in ((base, "calm"), (candidate, "loud")):
        for row in run.tasks["numbers"].rows:
            prompt(
                row,
                lambda text, system=system: (  # type: ignore[misc]
                    f"<|im_start|>system\nBe a {system} {CANARY}.<|im_end|>\n<|im_start|>user\n"
                    f"{text}<|im_end|>\n<|im_start|>assistant\n"
                ),
            )


def rewrite(write: Callable[[int], str], *, sides: str = "both") -> Change:
    """Let sides have generated other texts."""

    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        for run in (base, candidate) if sides == "both" else (candidate,):
            write_texts(run.tasks["numbers"], [write(i) for i in range(N)])

    return change


def go_on(base: WrittenRun, candidate: WrittenRun) -> None:
    task = candidate.tasks["numbers"]
    write_texts(
        task,
        [
            f"{text}\n\nAnd so it goes on, and does not end where it should"
            for text in texts_of(task)
        ],
    )


def prompt_before(begin: str, **facts: Any) -> Change:
    """Let prompts begin otherwise, and runs say more of how they were made."""

    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        for run in (base, candidate):
            run.tasks = {"numbers": run.tasks["numbers"]}
            run.config |= {"model": "local-completions", "model_args": {"add_bos_token": True}}
            run.more |= facts
            for row in run.tasks["numbers"].rows:
                prompt(row, lambda text: f"{begin}{text}")

    return change


def end_in_stops(base: WrittenRun, candidate: WrittenRun) -> None:
    write_texts(
        candidate.tasks["numbers"], [f"{t}Q:" for t in texts_of(candidate.tasks["numbers"])]
    )


def fail_at_zero(base: WrittenRun, candidate: WrittenRun) -> None:
    for run in (base, candidate):
        run.tasks = {"numbers": run.tasks["numbers"]}
        write_texts(run.tasks["numbers"], [f"{run.model} {i} #### {i + 1}" for i in range(N)])


def exchange_documents(base: WrittenRun, candidate: WrittenRun) -> None:
    for row in candidate.tasks["words"].rows[5:9]:
        row["doc"], row["target"] = {"text": "another"}, "other"


# Change, options, exit code, and kinds of findings that it must make.
PLANTED: dict[str, tuple[Change, dict[str, Any], int, set[FindingKind]]] = {
    "nothing": (lambda base, candidate: None, {}, 0, set()),
    "broken": (break_documents, {}, 1, {"broken_documents"}),
    "other prompts": (change_prompts, {}, 3, set()),
    "declared": (change_prompts, {"allow_differing": ["prompt"]}, 0, {"prompts_differ"}),
    "one answer": (
        rewrite(lambda i: "Always #### 7", sides="candidate"), {}, 1,
        {"says_nothing", "loss_is_spread"},
    ),
    "one answer of both": (rewrite(lambda i: "Always #### 7"), {}, 3, set()),
    "no answer": (
        rewrite(lambda i: f"It is {i}th", sides="candidate"), {}, 1, {"no_answer_found"},
    ),
    "no answer of both": (rewrite(lambda i: "It is so" + "!" * i), {}, 3, {"no_answer_found"}),
    "loops": (rewrite(lambda i: f"and {i} again " * 60), {}, 3, {"broken_answers"}),
    "ends of texts": (go_on, {}, 0, {"answers_go_on"}),
    "long prompts": (
        prompt_before("How many are there? " * 9, max_length=20), {}, 0, {"prompts_cut"},
    ),
    "two BOS": (
        prompt_before("<s>", tokenizer_bos_token=["<s>", "1"], lm_eval_version="0.4.13"), {}, 0,
        {"bos_twice"},
    ),
    "stops": (end_in_stops, {}, 0, {"stops_left_in"}),
    "at zero": (fail_at_zero, {}, 3, set()),
    "other documents": (exchange_documents, {}, 3, set()),
}  # fmt: skip


# Kinds whose makers see no text of a document: scores, settings, weights, versions, files.
WITHOUT_TEXTS: frozenset[FindingKind] = frozenset(
    {
        "same_model", "first_answers_fail", "not_judged", "sides_differ", "untested_differences",
        "padding_changes", "task_shows_little", "distributions_unknown", "distributions_moved",
        "server_varies", "dependent_documents", "dependence_unknown", "rests_on_documents",
        "scores_unrelated", "far_better", "waiver", "made_differently", "scores_depend",
        "weights_unused", "batch_size_effect", "not_stored", "setting_unread",
        "one_revision", "run_chosen", "deltas_lost", "own_reference",
        "answers_differ", "chosen_against_odds",  # counts alone
    }
)  # fmt: skip


def test_every_kind_is_planted_or_made_without_texts() -> None:
    planted = {kind for *_, kinds in PLANTED.values() for kind in kinds}
    assert planted | WITHOUT_TEXTS == {*KINDS}
    assert not planted & WITHOUT_TEXTS


@pytest.mark.parametrize("name", PLANTED)
def test_no_sentence_of_a_comparison_holds_words_of_documents(tmp_path: Path, name: str) -> None:
    change, options, code, kinds = PLANTED[name]
    base, candidate = healthy_run(), healthy_run(port=True)
    change(base, candidate)
    plant(base)
    plant(candidate)
    found = evalguard.compare(
        base.write(tmp_path / "base"),
        candidate.write(tmp_path / "cand"),
        track="none",
        quiet=True,
        output_path=tmp_path / "reports",
        **options,
    ).report
    assert found.exit_code == code
    assert kinds <= {one.kind for one in found.findings}
    assert holds(json.dumps(compare_document(found))), "nothing was planted"
    assert not any(holds(text) for text in sentences(found))
    assert not holds(json.dumps(compare_document(without_quotes(found))))
    assert not holds(repr(asdict(build_tracked_run(found))))


def sentences(found: CompareReport) -> Iterator[str]:
    yield from (one.text for one in found.findings)
    yield from (text for c in found.comparisons for text in (c.reason, *c.caveats))
    yield from (one.reason for one in (*found.not_compared, *found.gate.limits))
    yield from (found.gate.reason, *found.notes)
    yield from (one.line for one in found.broken_documents)


def test_an_error_says_how_prompts_differ_and_quotes_apart() -> None:
    from evalguard.core.scorer import Request
    from evalguard.engine.fairness import AskedPrompt, refuse_other_prompts

    asked = Request(
        task="t", doc_id=7, index=0, kind="generate_until", arguments=(f"b {CANARY}", {})
    )
    with pytest.raises(MisalignedRunsError, match=r"doc_id 7\): they first differ") as refused:
        refuse_other_prompts({("t", 7, 0): AskedPrompt(prompt=f"a {CANARY}", ids=())}, [asked])
    assert not holds(f"{refused.value} {refused.value.hint}")
    assert all(holds(one.text) for one in refused.value.quotes)


@contextmanager
def open_code_of_a_task() -> Iterator[None]:
    with task_code("document 7"):
        yield


@contextmanager
def open_model() -> Iterator[None]:
    with explain_failures("generate_until", []):
        yield


@contextmanager
def open_template() -> Iterator[None]:
    class Model:
        def apply_chat_template(self, history: Any, **_options: Any) -> str:
            return str(float(history[0]["content"]))

    format_chat(Model(), [{"role": "user", "content": CANARY}], add_generation_prompt=True)
    yield


@pytest.mark.parametrize("foreign", [open_code_of_a_task, open_model, open_template])
def test_what_foreign_code_says_while_it_has_documents_is_quoted(foreign: Any) -> None:
    with pytest.raises(EvaluationError, match="ValueError") as failed_, foreign():
        float(CANARY)
    assert not holds(f"{failed_.value} {failed_.value.hint}")
    assert any(holds(one.text) for one in failed_.value.quotes)
