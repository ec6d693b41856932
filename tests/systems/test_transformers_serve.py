"""``transformers serve``, started by evalguard: what it generates is compared, the rest refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from system_models import MODEL, ORIGINAL, Compare

pytestmark = [pytest.mark.systems, pytest.mark.nightly]

# The command `transformers` would do; as a module it is found whatever PATH says.
PROGRAM = "from transformers.cli.transformers import main; main()"
SERVED: dict[str, Any] = {
    "model": "local-completions",
    "model_args": {
        "model": str(MODEL),
        "tokenizer": str(MODEL),
        "tokenized_requests": False,  # it takes texts only
        "add_bos_token": True,
    },
    # 5.23 answers with a name (FOLDER@main) that it does not take
    "requirements": ["torch==2.13.0", "transformers[serving]==5.24.0"],
    "serve": {
        "command": [
            "python", "-c", PROGRAM, "serve", str(MODEL), "--port", "{port}",
            "--host", "127.0.0.1", "--device", "cpu",
        ],
        "url": "http://127.0.0.1:{port}/v1/completions",
        "ready": "/health",
    },
}  # fmt: skip
TASK = """
task: gen_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 8, do_sample: false, temperature: 0.0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
TEXTS = ("Once upon a", "The shepherd was", "Emil was a", "In the morning", "The old", "Jonas was")


def test_generated_texts_are_those_of_the_model(compare: Compare, tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": one}) + "\n" for one in TEXTS))
    (tmp_path / "gen_words.yaml").write_text(TASK.format(documents=documents))
    found = compare(
        {"original": ORIGINAL, "served": SERVED}, "--batch_size", "1",
        tasks=["gen_words"], include_path=str(tmp_path),
    )  # fmt: skip
    (one,) = found["comparisons"]
    assert one["n"] == len(TEXTS)
    assert one["bit_identical"]  # a stop sequence is no part of an answer
    (samples,) = (tmp_path / found["run_folder"]).glob("samples/*.parquet")
    import pandas as pd

    table = pd.read_parquet(samples)
    here = [text for (text,) in table["base:text"]]
    there = [text for (text,) in table["candidate:text"]]
    assert sum(map(bool, here)) > 3  # some texts end at once
    assert here == [text.removesuffix(".") for text in there]
    assert here != there  # the server leaves a stop sequence in its text


def test_log_likelihoods_are_refused(compare: Compare) -> None:
    found = compare({"original": ORIGINAL, "served": SERVED}, "--batch_size", "1", code=3)
    # It counts a token more than was sent, and it has none of the log-probabilities.
    message = found["error"]["message"]
    assert "the server read" in message or "gave 0 log-probabilities" in message
