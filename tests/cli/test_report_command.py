"""A finished run is shown again as it was, and written to files, whatever happens to those."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from edited_result import edit_result
from huggingface_hub import ModelCard

from evalguard.errors import StoreError
from evalguard.report.formats import RENDERINGS, Rendering
from evalguard.store.atomic_files import HalfFile


def folder_of(ran: Any) -> Path:
    (folder,) = Path("reports").iterdir()
    return folder


def failing(error: BaseException) -> Rendering:
    """A format that cannot be made, and that every run folder is to have."""

    def render(*_: object) -> str:
        raise error

    return Rendering(render=render, suffixes=(".txt",), run_file="page.txt")


def test_a_run_is_shown_again_to_the_letter(run: Any, compare: Any) -> None:
    first = compare("orig", "sharp", "--tasks", "sw_word,sw_choice", "-v")
    folder = folder_of(first)
    again = run("report", folder)
    assert (first.code, again.code) == (1, 0)
    assert (again.out, again.err) == (first.out, "")
    assert run("report", folder / "result.json").out == first.out
    assert run("report", folder, "-v").out == first.out


def test_json_of_a_run_is_its_result(run: Any, compare: Any) -> None:
    first = compare("orig", "sharp", "--json")
    folder = folder_of(first)
    written = json.loads((folder / "result.json").read_text())
    assert run("report", folder, "--json").document == first.document == written
    assert json.loads(run("report", folder, "--format", "json").out) == written


def test_files_are_the_same_from_the_comparison_and_from_its_folder(run: Any, compare: Any) -> None:
    names = ("page.txt", "result.JSON")
    first = compare("orig", "sharp", "-v", *(word for name in names for word in ("-o", name)))
    assert "REGRESSED" in first.out
    folder = folder_of(first)
    there = run("report", folder, "-o", "a.txt", "-o", "b.json")
    assert (there.code, there.out, there.err) == (0, "", "")
    for old, new in zip(names, ("a.txt", "b.json"), strict=True):
        assert Path(old).read_bytes() == Path(new).read_bytes()
    assert Path("page.txt").read_text() == first.out
    assert json.loads(Path("b.json").read_text()) == json.loads(
        (folder / "result.json").read_text()
    )


def test_a_format_may_be_chosen_for_files_and_for_stdout(run: Any, compare: Any) -> None:
    first = compare("orig", "sharp", "-o", "any name", "--format", "json", "-q")
    assert "REGRESSED" in first.out
    assert json.loads(Path("any name").read_text())["exit_code"] == 1
    shown = run("report", folder_of(first), "--format", "text", "--width", "40")
    assert max(map(len, shown.out.splitlines())) <= 40
    both = run("report", folder_of(first), "--json", "-o", "x", "--format", "text")
    assert both.document["exit_code"] == 1
    assert "REGRESSED" in Path("x").read_text()
    assert compare("orig", "sharp", "--format", "json", "-q").document["exit_code"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "report.pdf"), "the suffix '.pdf' says no format"),
        (("-o", "report"), "has no suffix"),
        (("-o", ".", "--format", "text"), "this is a folder"),
        (("-o", "no/such/page.txt"), "there is no folder"),
        (("-o", "-", "--format", "text"), "- is not a name of a file"),
        (("--format", "pdf"), "'pdf' is not one of"),
        (("--json", "--format", "text"), "both say what to print"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(
    run: Any, compare: Any, words: tuple[str, ...], said: str
) -> None:
    ran = compare("orig", "sharp", *words)
    assert ran.code == 2
    assert said in ran.err
    assert not Path("reports").exists() or not list(Path("reports").iterdir())


def test_report_refuses_them_too_and_writes_none(run: Any, compare: Any) -> None:
    folder = folder_of(compare("orig", "sharp"))
    for wrong in ("b.pdf", "no/b.txt", "."):
        ran = run("report", folder, "-o", "a.txt", "-o", wrong)
        assert (ran.code, ran.out) == (2, "")
    assert not Path("a.txt").exists()


@pytest.mark.parametrize(("candidate", "code"), [("sharp", 1), ("orig", 0)])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreError("the disk is full", hint="make room"), "the disk is full (make room)"),
        (RuntimeError("no template"), "RuntimeError: no template"),
        (KeyboardInterrupt(), "it was interrupted"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_page_that_cannot_be_made_costs_neither_verdict_nor_run(
    compare: Any,
    monkeypatch: pytest.MonkeyPatch,
    candidate: str,
    code: int,
    error: BaseException,
    said: str,
) -> None:
    monkeypatch.setitem(RENDERINGS, "text", failing(error))
    ran = compare("orig", candidate, "-o", "kept.json", "--json")
    folder = folder_of(ran)
    problem = f"{folder / 'page.txt'} was not written: {said}"
    assert ran.code == ran.document["exit_code"] == code
    assert f"warning: {problem}" in ran.err
    told = [one["text"] for one in ran.document["findings"] if one["kind"] == "not_stored"]
    assert any(text.startswith(problem) for text in told)
    assert json.loads((folder / "result.json").read_text())["exit_code"] == code
    assert Path("kept.json").exists() == (not isinstance(error, KeyboardInterrupt))


def test_a_disk_that_fills_up_while_a_file_is_written_is_told(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = HalfFile.open

    def full(self: HalfFile) -> Any:
        if self.path.name == "page.txt":
            raise OSError(28, "No space left on device")
        return opened(self)

    monkeypatch.setattr(HalfFile, "open", full)
    Path("page.txt").write_text("the page of yesterday")
    ran = compare("orig", "sharp", "-o", "page.txt")
    assert ran.code == 1
    assert "page.txt was not written" in ran.err
    assert "the disk is full" in ran.err
    assert "REGRESSED" in ran.out
    assert Path("page.txt").read_text() == "the page of yesterday"


def test_a_link_stays_and_a_pipe_is_written_into(run: Any, compare: Any) -> None:
    folder = folder_of(compare("orig", "sharp"))
    Path("real.txt").write_text("old")
    Path("link.txt").symlink_to("real.txt")
    os.mkfifo("pipe.txt")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe.txt").read_text()))
    reader.start()
    ran = run("report", folder, "-o", "link.txt", "-o", "pipe.txt")
    reader.join(120)
    assert ran.code == 0
    assert Path("link.txt").is_symlink()
    assert Path("real.txt").read_text() == read[0]
    assert "REGRESSED" in read[0]


def test_an_output_that_takes_nothing_is_an_error_of_report(run: Any, compare: Any) -> None:
    folder = folder_of(compare("orig", "sharp"))
    ran = run("report", folder, "--format", "text", "-o", "/dev/full")
    assert ran.code == 3
    assert "the disk is full" in ran.err
    assert Path("/dev/full").is_char_device()


def test_what_is_no_run_is_said(run: Any, compare: Any) -> None:
    folder = folder_of(compare("orig", "sharp"))
    result = folder / "result.json"
    written = json.loads(result.read_text())
    for name in ("absent", ".", folder / "samples"):
        ran = run("report", name)
        assert (ran.code, ran.out) == (2, "")
        assert "run folder" in ran.err
    result.write_text(json.dumps({**written, "schema": "evalguard.compare/2"}))
    assert "evalguard.compare/2" in run("report", folder).err
    result.write_text(json.dumps(written))
    edit_result(folder, lambda document: document.update(gate=1))
    damaged = run("report", folder, "--json")
    assert damaged.code == 3
    assert "gate is 1, not an object" in damaged.document["error"]["message"]
    result.rename("kept.json")
    assert "error: kept.json: the stored result is damaged" in run("report", "kept.json").err


def test_a_run_without_samples_or_of_an_earlier_version_is_shown(run: Any, compare: Any) -> None:
    first = compare("orig", "sharp", "-v")
    written = json.loads((folder_of(first) / "result.json").read_text())
    for key in ("resources", "sequential", "bisect_reason", "checksum"):
        del written[key]
    for gated in written["gate"]["gated"]:
        del gated["state"]
    Path("result.json").write_text(json.dumps(written))
    shown = run("report", "result.json")
    assert shown.code == 0
    assert shown.out.splitlines()[:6] == first.out.splitlines()[:6]
    assert "Saved in ." in shown.out


def test_a_comparison_of_broken_documents_is_shown_again(run: Any, compare: Any) -> None:
    first = compare("orig", "not-a-number", "-v")
    assert first.code == 1
    again = run("report", folder_of(first))
    assert (again.code, again.out) == (0, first.out)


def test_a_sequential_comparison_is_shown_again(run: Any, compare: Any) -> None:
    first = compare(
        "orig", "sharp", "--tasks", "sw_long", "--sequential", "--distributions", "off", "-v"
    )
    assert run("report", folder_of(first)).out == first.out


def test_an_early_verdict_by_a_margin_in_percent_is_printed_and_shown_again(
    run: Any, world: Any, tmp_path: Path
) -> None:
    guard = world.guard.with_name(f"{tmp_path.name}-percent.yaml")
    gate = "\ngate: {margin: 1pp, metrics: {perplexity: {margin: 400%}}, only: [perplexity]}\n"
    guard.write_text(world.guard.read_text(encoding="utf-8") + gate, encoding="utf-8")
    first = run(
        "compare", "--config", guard, "--base", "orig", "--cand", "soft", "--tasks", "sw_long",
        "--sequential", "--distributions", "off", "-v",
    )  # fmt: skip
    assert first.code == 0, first.err
    assert "Stopped early: the gate's verdict is that of all documents" in first.out
    assert "a metric fails above 400% if its 95% interval lies above 0" in " ".join(
        first.out.split()
    )
    assert "In the margin's unit: sw_long perplexity -" in first.out
    again = run("report", folder_of(first))
    assert (again.code, again.out) == (0, first.out)


def test_a_real_comparison_becomes_a_card(run: Any, compare: Any) -> None:
    compare("orig", "sharp", "--tasks", "sw_word,sw_choice")
    (folder,) = Path("reports").iterdir()
    card = run("card", folder)
    assert (card.code, card.err) == (0, "")
    assert card.out.startswith("## Evaluation against orig\n")
    assert "| regressed |" in card.out
    assert "task:sw_word,v=" in card.out
    assert ",docs=?" not in card.out
    run("card", folder, "-o", "index.yaml", "-o", "badge.svg")
    text = Path("index.yaml").read_text(encoding="utf-8")
    assert ModelCard(f"---\n{text}---\n").data.model_name == "sharp"
    ElementTree.parse("badge.svg")
