"""Tasks and their data that change."""

from __future__ import annotations

from pathlib import Path

from world_changes import Case, text


def as_parquet(folder: Path) -> None:
    write_parquet(folder, "boat")
    task = folder / "tasks" / "told.yaml"
    task.write_text(task.read_text().replace("csv", "parquet"))


def write_parquet(folder: Path, word: str) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": [f"the {word}", "the fog"]})
    pyarrow.parquet.write_table(table, folder / "tasks" / "told.parquet")


DATA: dict[str, Case] = {
    "documents (JSON), times kept": Case(
        text("tasks/test.jsonl", "lantern", "harbour", keep_times=True)
    ),
    "documents (CSV), times kept": Case(text("tasks/told.csv", "mara", "fogs", keep_times=True)),
    "documents (parquet)": Case(
        lambda folder, _: write_parquet(folder, "pier"), prepare=as_parquet
    ),
    "few-shot documents": Case(text("tasks/train.jsonl", "lantern", "harbour", keep_times=True)),
    "a function of the task": Case(text("tasks/reading.py", "WORD + doc", "doc")),
    "what that function imports": Case(text("tasks/beside.py", "so ", "or so "), afresh=True),
    "a file that that function reads": Case(text("tasks/word.txt", "then", "thus"), afresh=True),
    "the prompt": Case(text("tasks/told.yaml", "{{text}}", "{{text}} and")),
    "a file that the task includes": Case(text("tasks/base.inc", '". "', '"; "')),
    "few-shot examples": Case(text("tasks/word.yaml", "fewshot: 1", "fewshot: 2")),
    "where generation ends": Case(text("tasks/told.yaml", '["@"]', '["e"]')),
    "how long generation goes": Case(text("tasks/told.yaml", "max_gen_toks: 8", "max_gen_toks: 3")),
    "a metric of the task": Case(
        text("tasks/base.inc", "metric: perplexity, aggregation: perplexity", "metric: acc"),
        matters=False, scored=False,
    ),
}  # fmt: skip
