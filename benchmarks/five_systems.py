"""The five cases that evalguard was made for: healthy, with their fault, with three faults that no
page of the documentation names, and a nonsensical value for each documented setting.

    python -m benchmarks.five_systems --output benchmarks/results/five_systems.md

The real packages in environments of their own (made once, and kept where tests/systems keep them),
small models of other sizes than those of the tests, 16 documents. An hour on two cores; --only
PATTERN takes the rows whose system and name have it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.output import deliver
from benchmarks.system_cases import CACHE, ROOT, ROWS, Row


def call(command: list[str], folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command line, which runs in this process."""
    from evalguard.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*command, "--json", "--quiet"])
        except SystemExit as ended:
            code = int(ended.code or 0)
    text = out.getvalue()
    told = json.loads(text) if text.startswith("{") else {"error": {"message": err.getvalue()}}
    return code, told


HEAD = """\
# Five systems

`python -m benchmarks.five_systems`: float32 on a CPU, the packages that tests/systems pin. The
verdict of `compare` and its exit code, after `;` that of `trace` with its own; settings that a
search names and modules that a trace names; the case's own figure (of other models, and so another
number) beside ours. Of nonsense, the beginning of what is said. HuBERT is a port in numpy that
rounds where ggml does, not ggml; torchao's reported fault is enacted as a product in float16.

| system | what | verdict | exit code | named | ours | the case's | |
|---|---|---|---|---|---|---|---|"""


def answer(row: Row, work: Path) -> tuple[bool, str]:
    """Run a row's command lines: whether all is as it has to be, and its line of the table."""
    if row.base is None:
        code, document = call([*row.words], work)
        found = {one["module"] for one in document.get("suspects", ())}
        verdicts = [_verdict(document)]
    else:
        models = {"base": row.base, "cand": row.candidate}
        models |= {"traced": row.traced} if row.traced else {}
        guard = {
            "models": models,
            "pairs": [{"base": "base", "cand": "cand", "differs": ["tokens"]}],
            "include_path": str(ROOT / "tasks"),
            "tasks": ["evalguard_lastword"],
            "gate": {"metrics": {"kl_mean": row.limit}},
        }
        (work / "guard.yaml").write_text(yaml.safe_dump(guard, sort_keys=False))
        common = ["--config", "guard.yaml", "--cache-dir", str(CACHE), "--cand", "cand"]
        words = ["compare", *common, "--base", "base", "--limit", "16", *row.words]
        code, document = call(words, work)
        search = document.get("bisect") or {}
        found = {one["setting"] for one in search.get("culprits", ())}
        verdicts = [_verdict(document)]
        if search.get("status") == "stopped":  # by whoever ended this: it says nothing of names
            verdicts.append("search stopped")
        if row.traced and "error" not in document:
            (work / "text.txt").write_text("Mara carried the lantern down to the harbour.")
            words = ["trace", *common, "--base", "traced", "--text", "text.txt", "--swap", "0"]
            traced, seen = call(words, work)
            found |= {one["module"] for one in seen.get("suspects", ())}
            verdicts.append(f"{_verdict(seen)} ({traced})")
    refused = row.what.startswith("nonsense")
    right = code in (2, 3) if refused else (code, found) == (row.code, row.names)
    ours = "" if refused or "error" in document else row.ours(document)
    cells = (row.system, row.what, "; ".join(verdicts), str(code), ", ".join(sorted(found)), ours,
             row.seed, "" if right else "**not as it should be**")  # fmt: skip
    return right, f"| {' | '.join(one.replace('|', '/') for one in cells)} |"


def _verdict(document: Mapping[str, Any]) -> str:
    if "error" in document:
        return " ".join(document["error"]["message"].split())[:120]
    if "gate" in document:
        return str(document["gate"]["state"])
    if "suspects" in document:
        return {0: "CLEAR", 1: "LOCATED"}.get(document["exit_code"], "UNKNOWN")
    return "different" if document["exit_code"] else "equal"


def main() -> None:
    """Run all rows, and write the table as far as it is after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", PIP_NO_COMPILE="0")
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS:
            work = Path(folder, rows.__name__)
            work.mkdir()
            for row in rows(work):
                if re.search(asked.only, f"{row.system} {row.what}"):
                    lines.append(answer(row, work)[1])
                    print(lines[-1], file=sys.stderr, flush=True)
                    if asked.output:
                        deliver([HEAD, *lines], asked.output)
    deliver([HEAD, *lines], asked.output)


if __name__ == "__main__":
    main()
