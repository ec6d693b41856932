"""Requests as plain data: order, identity between builds, blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from local_tasks import N, build, render_chat, write_task, write_tasks

from evalguard.errors import EvaluationError
from evalguard.harness.requests import build_requests
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks


def test_base_and_candidate_get_the_same_few_shot_examples(task_folder: Path) -> None:
    options = TaskOptions(include_paths=(task_folder,))
    tasks = load_tasks(["eg_choice"], options=options)
    first = tasks.requests("eg_choice")
    again = build_requests("eg_choice", first.lm_eval_task, options, render_chat=None)
    assert first.requests == again.requests
    assert tasks.requests("eg_choice").requests == first.requests
    assert str(first.requests[0].arguments[0]).count("Q: ") == 3
    assert first.requests == build(task_folder, "eg_choice").requests


def test_few_shot_seed_changes_the_examples_and_is_recorded(task_folder: Path) -> None:
    one, other = build(task_folder, "eg_choice"), build(task_folder, "eg_choice", seed=4)
    assert one.requests != other.requests
    assert (one.run["fewshot_seed"], other.run["fewshot_seed"]) == (1234, 4)
    assert "fewshot_seed" not in build(task_folder, "eg_choice", num_fewshot=0).run


def test_requests_are_ordered_and_repeats_are_requests_of_their_own(task_folder: Path) -> None:
    generate = build(task_folder, "eg_generate")
    assert [(r.doc_id, r.index) for r in generate.requests] == [
        (doc_id, index) for doc_id in range(N) for index in range(2)
    ]
    choice = build(task_folder, "eg_choice")
    assert len({(r.doc_id, r.index) for r in choice.requests}) == 4 * N
    assert {r.kind for r in choice.requests} == {"loglikelihood"}
    assert [r.arguments[1] for r in choice.requests[:4]] == [
        " yes",
        " surely not",
        " maybe",
        " é",
    ]


def test_requests_are_plain_data(task_folder: Path) -> None:
    for name in ("eg_lastword", "eg_rolling", "eg_choice", "eg_generate"):
        for request in build(task_folder, name).requests:
            assert json.loads(json.dumps(request.arguments)) == list(request.arguments)


@pytest.mark.parametrize(
    ("limit", "n", "said"), [(5, 5, 5), (5.0, 5, 5), (0.1, 3, 3), (None, N, "all"), (99, N, "all")]
)
def test_limit_takes_the_first_documents(
    task_folder: Path, limit: float | None, n: int, said: object
) -> None:
    requests = build(task_folder, "eg_lastword", limit=limit)
    assert requests.doc_ids == tuple(range(n))
    assert requests.n_documents == n
    assert requests.n_total == N
    assert requests.run["limit"] == said


def test_run_says_what_shaped_the_prompts(task_folder: Path) -> None:
    assert build(task_folder, "eg_lastword").run == {
        "num_fewshot": 0,
        "limit": "all",
        "task_version": 3.0,
        "output_type": "loglikelihood",
    }


def test_chat_template_comes_from_the_model(task_folder: Path) -> None:
    options = TaskOptions(include_paths=(task_folder,), apply_chat_template=True)
    tasks = load_tasks(["eg_choice"], options=options)
    text = tasks.requests("eg_choice", render_chat=render_chat).requests[0].arguments[0]
    assert str(text).startswith("<user>Q: ")
    assert str(text).endswith("<assistant>")
    again = tasks.requests("eg_choice", render_chat=lambda m, add_generation_prompt: "other")
    assert again.requests[0].arguments[0] == "other"
    with pytest.raises(EvaluationError, match="chat template"):
        tasks.requests("eg_choice")


def test_task_that_shuffles_without_a_seed_keeps_answers_with_their_documents(
    tmp_path: Path,
) -> None:
    write_tasks(tmp_path)
    (tmp_path / "code.py").write_text("def process_docs(dataset):\n    return dataset.shuffle()\n")
    body = (
        "output_type: multiple_choice\nprocess_docs: !function code.process_docs\n"
        'doc_to_text: "{{text}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: gold\n'
    )
    write_task(tmp_path, "eg_shuffled", body)
    one, other = build(tmp_path, "eg_shuffled"), build(tmp_path, "eg_shuffled")
    assert one.requests == other.requests
    for request in one.requests:
        assert request.arguments[0] == one.documents[request.doc_id]["text"]


def test_document_without_a_request_is_an_error(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    (tmp_path / "code.py").write_text(
        "from lm_eval.api.task import ConfigurableTask\n\n\n"
        "class Silent(ConfigurableTask):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config={k: v for k, v in config.items() if k != 'class'})\n\n"
        "    def construct_requests(self, doc, ctx, **kwargs):\n"
        "        made = super().construct_requests(doc, ctx, **kwargs)\n"
        "        return [] if doc['gold'] == 0 else made\n"
    )
    body = 'output_type: loglikelihood\ndoc_to_text: "{{text}}"\ndoc_to_target: " end"\n'
    write_task(tmp_path, "eg_silent", body + "class: !function code.Silent\n")
    with pytest.raises(EvaluationError, match=r"asks nothing about \d+ of its 24 documents"):
        build(tmp_path, "eg_silent")


def test_a_system_instruction_that_reaches_no_prompt_is_noted(task_folder: Path) -> None:
    def refusing(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        told = [message for message in messages if message["role"] != "system"]
        return render_chat(told, add_generation_prompt)

    options = TaskOptions(
        include_paths=(task_folder,), apply_chat_template=True, system_instruction="Be brief."
    )
    tasks = load_tasks(["eg_generate", "eg_rolling"], options=options)
    assert tasks.requests("eg_generate", render_chat=render_chat).notes == ()
    (note,) = tasks.requests("eg_generate", render_chat=refusing).notes
    assert "system instruction is in no prompt" in note
    assert len(tasks.requests("eg_rolling", render_chat=render_chat).notes) == 1
