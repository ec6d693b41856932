"""Which sequences a trace reads: inputs from files, the last comparison, what moved most in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import evalguard
from evalguard.errors import UsageError
from evalguard.tracing.traced_documents import (
    DocumentChoice,
    choose_moved,
    find_comparisons,
    read_inputs,
    read_own_documents,
)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".json"])
def test_the_first_axis_of_inputs_counts_sequences(tmp_path: Path, suffix: str) -> None:
    from safetensors.numpy import save_file

    arrays = {
        "input_ids": np.arange(6, dtype=np.int64).reshape(2, 3),
        "attention_mask": np.ones((2, 3), dtype=np.int64),
    }
    file = tmp_path / f"inputs{suffix}"
    if suffix == ".npz":
        np.savez(file, **arrays)
    elif suffix == ".safetensors":
        save_file(arrays, file)
    else:
        file.write_text(json.dumps({name: one.tolist() for name, one in arrays.items()}))
    first, second = read_inputs(file)
    assert set(first) == set(arrays)
    assert first["input_ids"].tolist() == [[0, 1, 2]]
    assert second["input_ids"].tolist() == [[3, 4, 5]]


def test_an_array_of_one_axis_is_one_sequence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", input_values=np.zeros(40, dtype=np.float32))
    (only,) = read_inputs(tmp_path / "a.npz")
    assert only["input_values"].shape == (1, 40)


def test_pickled_arrays_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object))
    with pytest.raises(UsageError, match="cannot be read"):
        read_inputs(tmp_path / "a.npz")


def test_texts_come_in_their_order_and_not_beyond_the_limit(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for file in files:
        file.write_text(f"text {file.stem}\n")
    found = read_own_documents(DocumentChoice(texts=tuple(files), limit=2))
    assert [one.name for one in found] == ["0.txt", "1.txt"]
    assert all(one.own for one in found)


@pytest.fixture(scope="module")
def compared(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a comparison with several requests a document."""
    folder = tmp_path_factory.mktemp("reports")
    result = evalguard.compare(
        str(models["llama"]),
        str(models["other"]),
        tasks=["sw_word", "sw_choice"],
        include_path=[models["tasks"]],
        output_path=folder,
        cache_dir=folder / "cache",
        quiet=True,
    )
    assert result.run_folder is not None
    return Path(result.run_folder)


def names(compared: Path) -> tuple[str, str]:
    told = json.loads((compared / "result.json").read_text())
    return told["base"]["name"], told["candidate"]["name"]


def test_the_newest_whole_comparison_of_the_two_models_is_found(compared: Path) -> None:
    base, candidate = names(compared)
    root = compared.parent
    damaged = root / "29991231T000000Z-damaged"
    damaged.mkdir()
    (damaged / "result.json").write_text("{")
    (root / "29991231T000001Z-a-trace").mkdir()
    (found,) = find_comparisons(root, base, candidate, note=print)
    assert found.folder == compared
    assert not list(find_comparisons(root, base, candidate, ["sw_text"], note=print))
    assert not list(find_comparisons(root, candidate, base, note=print))
    assert not list(find_comparisons(root / "nowhere", base, candidate, note=print))


def test_a_comparison_of_a_later_version_is_left_out_with_a_note(compared: Path) -> None:
    later = compared.parent / "29991231T000002Z-later"
    later.mkdir()
    (later / "result.json").write_text('{"schema": "evalguard.compare/2"}')
    notes: list[str] = []
    (found,) = find_comparisons(compared.parent, *names(compared), note=notes.append)
    assert found.folder == compared
    assert notes == [
        f"{later / 'result.json'} is left out: it was written by a later evalguard: update "
        "evalguard"
    ]


def test_of_a_choice_the_option_that_moved_most_is_read(compared: Path) -> None:
    run = next(find_comparisons(compared.parent, *names(compared), note=print))
    moved = choose_moved(run, DocumentChoice(limit=4), ["sw_choice"])
    assert moved is not None
    documents = run.documents("sw_choice")
    assert documents is not None
    for one in moved.sequences:
        assert one.request is not None
        row = list(documents.doc_ids).index(one.request.doc_id)
        sides = (documents.of("base", "loglikelihood"), documents.of("candidate", "loglikelihood"))
        apart = [abs(a - b) for a, b in zip(sides[0][row], sides[1][row], strict=True)]
        assert one.request.index == int(np.argmax(apart))
        assert one.request.kind == "loglikelihood"
        assert one.name == f"sw_choice {one.request.doc_id}, request {one.request.index}"
        context, choice = one.request.arguments
        assert isinstance(context, str)
        assert str(choice).strip() in ("lantern", "fog", "harbour", "nobody")


def test_named_documents_stand_in_the_order_in_which_they_were_named(compared: Path) -> None:
    run = next(find_comparisons(compared.parent, *names(compared), note=print))
    moved = choose_moved(run, DocumentChoice(ids=(5, 2, 9)), ["sw_word"])
    assert moved is not None
    assert [one.request.doc_id for one in moved.sequences if one.request] == [5, 2, 9]
    with pytest.raises(UsageError, match="scored no such document"):
        choose_moved(run, DocumentChoice(ids=(777,)), ["sw_word"])
    assert choose_moved(run, DocumentChoice(), ["sw_text"]) is None


@pytest.mark.parametrize(
    "wrong",
    [{"limit": 0}, {"ids": (1,), "texts": (Path("a"),)}, {"ids": (1,), "inputs": (Path("a"),)}],
)
def test_documents_that_contradict_each_other_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        DocumentChoice(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_is_said_of_a_trace_and_of_unknown_distributions_holds_no_word_of_a_document(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """A bisection's report names the place that a trace found, and is published with its words."""
    pair = {"base": str(models["llama"]), "candidate": str(models["other"])}
    asked = {"tasks": ["sw_word"], "include_path": [models["tasks"]], "limit": 8, "quiet": True}
    rows = (models["tasks"] / "test.jsonl").read_text().splitlines()
    words = {word for row in rows for word in str(json.loads(row)["text"]).split()}
    found = evalguard.compare(
        **pair, **asked, scorer="harness", output_path=tmp_path, cache_dir=tmp_path / "cache"
    ).report
    (unknown,) = [one for one in found.findings if one.kind == "distributions_unknown"]
    text = tmp_path / "own.txt"
    text.write_text(" ".join(sorted(words)))
    traced = evalguard.trace(**pair, text=[text], output_path=tmp_path, quiet=True).to_dict()
    places = [*traced["suspects"], traced["first"]]
    assert len(places) > 1
    said = [unknown.text, repr(unknown.values), repr(unknown.quotes)]
    said += [f"{one['module']} {one['operation']}" for one in places]
    words = {word for word in words if len(word) > 3}  # of any sentence are "in", "the"
    assert len(words) > 8
    assert not [word for word in words if any(word in one.split() for one in said)]
