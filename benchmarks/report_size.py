"""Size of report.html, and how fast it works in a browser, by the number of documents.

    python -m benchmarks.report_size --output benchmarks/results/report_size.md

Documents are the passages of LAMBADA where ``--shared-data`` is at hand, over and over (the page's
compression looks back less far than they repeat), with one or twenty scored tokens each whose
numbers are drawn at random. Times are the best of some, of headless Chromium on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import deliver
from evalguard.core.compare_report import CompareReport, RunDocuments, RunIdentity, drift_column
from evalguard.core.gate import Gate
from evalguard.report.compare_html import render_html
from evalguard.report.compare_view import build_report_view
from evalguard.report.document_table import MOST_DOCUMENTS, TEXT_BUDGET, TOKEN_BUDGET

ROOT = Path(__file__).parent.parent
COMMAND = "python -m benchmarks.report_size --output benchmarks/results/report_size.md"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
TIMES = 5
SEED = 20261121


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A page: so many tasks, documents in each, scored tokens in each of these."""

    tasks: int
    documents: int
    tokens: int


SIZES = (
    Size(tasks=2, documents=5_000, tokens=2),
    Size(tasks=2, documents=5_000, tokens=20),
    Size(tasks=1, documents=20_000, tokens=2),
    Size(tasks=1, documents=100_000, tokens=2),
)


def documents_of(passages: Sequence[tuple[str, str]], size: Size, number: int) -> RunDocuments:
    """One task: passages with their last words, and numbers drawn at random."""
    rng, n = np.random.default_rng([SEED, number]), size.documents
    chosen = [passages[(place + number * 1_000) % len(passages)] for place in range(n)]
    base = -rng.gamma(1.0, 1.5, (n, size.tokens))
    candidate = base - rng.normal(0.01, 0.2, base.shape)
    columns: dict[str, list[Any]] = {
        "doc_id": list(range(n)),
        "target": [word for _, word in chosen],
        drift_column("none", "perplexity"): ((base - candidate).sum(axis=1) / n / 0.02).tolist(),
    }
    for side, scores in (("base", base), ("candidate", candidate)):
        totals = scores.sum(axis=1).tolist()
        columns |= {
            f"{side}:prompt": [text for text, _ in chosen],
            f"{side}:arguments": [[json.dumps([text, word])] for text, word in chosen],
            f"{side}:loglikelihood": [[total] for total in totals],
            f"{side}:is_greedy": [[total > -1.0] for total in totals],
            f"{side}:text": [[None]] * n,
            f"{side}:token_logprobs": [[row] for row in scores.tolist()],
            f"{side}:scores": [
                json.dumps({"none": {"perplexity": total, "acc": int(total > -1.0)}})
                for total in totals
            ],
        }
    scored = n * size.tokens
    words = np.array([word for _, word in chosen], dtype=object)
    tokens = {
        "doc_id": np.repeat(np.arange(n), size.tokens),
        "request": np.zeros(scored, dtype=np.int64),
        "token_id": rng.integers(0, 50_257, scored),
        "text": np.repeat(words, size.tokens),
        "kl": rng.gamma(0.5, 0.05, scored),
    }
    return RunDocuments(task=f"task {number}", columns=columns, tokens=tokens)


def page_of(documents: Sequence[RunDocuments]) -> tuple[str, float]:
    """The page, and the CPU seconds that it took."""
    sides = [RunIdentity(name=name, digest=name) for name in ("base", "candidate")]
    report = CompareReport(
        base=sides[0],
        candidate=sides[1],
        comparisons=(),
        gate=Gate().judge(()),
        exit_code=0,
        created="2026-11-21T00:00:00+00:00",
    )
    start = time.process_time()
    page = render_html(build_report_view(report), documents)
    return page, time.process_time() - start


USED = """async (what) => {
  const settled = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const by = (id) => document.getElementById(id);
  const count = by("count").textContent;
  const start = performance.now();
  if (what === "filter") {
    by("filter").value = by("filter").value === "worse" ? "better" : "worse";
    by("filter").dispatchEvent(new Event("change"));
    while (by("count").textContent === count) await settled();
  } else if (what === "sort") by("grid-head").querySelector("[data-key=base]").click();
  else if (what === "scroll") {
    by("grid-body").scrollTop = Math.random() * by("grid-body").scrollHeight;
  }
  else {
    by("search").value = what;
    by("search").dispatchEvent(new Event("input"));
    while (by("count").textContent === count || by("count").textContent.startsWith("Search"))
      await settled();
  }
  await settled();
  return performance.now() - start;
}"""


def times_of(page: Any, file: Path) -> Iterator[tuple[str, float]]:
    """Milliseconds of each thing that a reader does."""
    loads = []
    for _ in range(TIMES):
        start = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        loads.append(1000 * (time.perf_counter() - start))
    yield "usable", min(loads)
    for what in ("filter", "sort", "scroll"):
        yield what, min(page.evaluate(USED, what) for _ in range(TIMES))
    page.select_option("#filter", "all")
    yield "first search", page.evaluate(USED, "river")
    yield (
        "search",
        min(page.evaluate(USED, word) for word in ("house", "door", "sea")),
    )


NAMES = ("usable", "filter", "sort", "scroll", "first search", "search")


def table(passages: Sequence[tuple[str, str]], browser: Any) -> Iterator[str]:
    """One row for each size."""
    yield "| tasks × documents | tokens each | file | made in | " + " | ".join(NAMES) + " |"
    yield "|---|---|---|---|" + "---|" * len(NAMES)
    for size in SIZES:
        made = [documents_of(passages, size, number) for number in range(size.tasks)]
        text, seconds = page_of(made)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.html"
            file.write_text(text, encoding="utf-8")
            page = browser.new_page()
            found = dict(times_of(page, file))
            page.close()
        cells = [f"{found[name]:,.0f} ms" for name in NAMES]
        sizes = (
            f"{size.tasks} × {size.documents:,} | {size.tokens} | {len(text.encode()) / 1e6:.2f} MB"
        )
        yield f"| {sizes} | {seconds:.1f} s | {' | '.join(cells)} |"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--shared-data", type=Path, default=os.environ.get("EVALGUARD_SHARED_DATA"))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    folder = Path(given.shared_data or ROOT.parent / "shared" / "data")
    lines = (folder / "lambada" / "lambada_openai.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    passages = [(row["context"], row["continuation"]) for row in rows]

    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.browser, args=list(FLAGS))
        version, found = browser.version, list(table(passages, browser))
        browser.close()
    deliver([*_head(version), *found, *_foot()], given.output)


def _head(browser: str) -> Iterator[str]:
    yield "# Size and speed of report.html"
    yield ""
    yield (
        f"`{COMMAND}`; Python {platform.python_version()}, Chromium {browser}, "
        f"{platform.machine()}, passages of LAMBADA (330 characters on average), numbers drawn at "
        f"random, best of {TIMES}; two cores, which did much other work beside it."
    )
    yield ""


def _foot() -> Iterator[str]:
    yield ""
    yield "- made in: CPU seconds of Python, once per run."
    yield (
        "- usable: from opening the file until the table can be used. filter, sort, scroll: until "
        "the rows are drawn. search: 120 ms of it wait for the next key; the first one reads all "
        "texts."
    )
    yield (
        f"- A page holds {MOST_DOCUMENTS:,} documents, those that moved most, {TEXT_BUDGET:,} "
        f"characters of their texts and {TOKEN_BUDGET:,} tokens at the most: of those that moved "
        "least only the end of the prompt is there. The page says so."
    )


if __name__ == "__main__":
    main()
