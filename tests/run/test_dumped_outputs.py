"""Two folders of outputs are two sides of a comparison: what is alike passes, a fault fails, and
what shows nothing is never a pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from dumped_outputs import SYMBOLS, Array, make_inputs, make_logits, with_noise, write_dump

import evalguard
from evalguard.comparison.result import CompareResult
from evalguard.core.findings import without_quotes
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.installation import extra_command
from evalguard.report.compare_document import compare_document
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import render_report

LOGITS, HIDDEN = {"output": "logits"}, {"output": "hidden"}
OUTPUTS, FAVOURED = make_logits()
INPUTS = make_inputs()


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., CompareResult]:
    def compared(base: Path, candidate: Path, **options: Any) -> CompareResult:
        return evalguard.compare(
            base, candidate, quiet=True, output_path=tmp_path / "reports", **options
        )

    return compared


Compare = Callable[..., CompareResult]


def reference_of(favoured: Array) -> str:
    """The text of a path, decoded by the definition of CTC."""
    symbols = [SYMBOLS[one] for one, _ in groupby(favoured.tolist())]
    return " ".join("".join(symbols).replace("<pad>", "").replace("|", " ").split())


def metrics_of(result: CompareResult) -> dict[str, Any]:
    return {one.metric: one for one in result.report.comparisons}


def test_a_healthy_twin_passes_with_a_tiny_kl_that_is_scipys(
    compare: Compare, tmp_path: Path
) -> None:
    twin = with_noise(OUTPUTS, 1e-4)
    base = write_dump(tmp_path / "orig", OUTPUTS, config=LOGITS, inputs=INPUTS)
    port = write_dump(tmp_path / "port", twin, config=LOGITS, inputs=INPUTS)
    result = compare(base, port)
    assert result.exit_code == 0
    assert result.report.gate.state == "passed"
    (found,) = result.report.distributions
    p, q = (
        scipy.special.softmax(np.concatenate([one[0] for one in of]).astype(np.float64), axis=1)
        for of in (OUTPUTS, twin)
    )
    by_scipy = scipy.stats.entropy(p, q, axis=1)
    assert found.positions == len(by_scipy) == sum(range(20, 32))
    assert found.kl.value == pytest.approx(by_scipy.mean(), rel=1e-4)
    assert 0.0 < by_scipy.mean() < 1e-8
    assert found.same_top1.value == np.mean(p.argmax(axis=1) == q.argmax(axis=1))
    (metric,) = result.report.comparisons
    assert (metric.task, metric.metric, metric.n) == ("output", "expected_logprob", 12)
    assert metric.caveats == ()


def test_without_labels_the_base_is_its_own_reference_and_that_is_said(
    compare: Compare, tmp_path: Path
) -> None:
    """Golden: of the base its negative entropy, by scipy; the drift is the mean KL of documents."""
    cand = with_noise(OUTPUTS, 0.3)
    result = compare(
        write_dump(tmp_path / "a", OUTPUTS, config=LOGITS), write_dump(tmp_path / "b", cand)
    )
    (metric,) = result.report.comparisons
    p, q = (
        [scipy.special.softmax(one[0].astype(np.float64), axis=1) for one in of]
        for of in (OUTPUTS, cand)
    )
    entropies = [scipy.stats.entropy(one, axis=1).mean() for one in p]
    divergences = [scipy.stats.entropy(a, b, axis=1).mean() for a, b in zip(p, q, strict=True)]
    error = np.std(entropies, ddof=1) / np.sqrt(12)
    assert metric.base == pytest.approx(-np.mean(entropies), rel=1e-9)
    assert metric.base_stderr == pytest.approx(error, rel=1e-9)
    assert metric.sigma == pytest.approx(np.mean(divergences) / error, rel=1e-6)
    (said,) = [one for one in result.report.findings if one.kind == "own_reference"]
    assert "the verdict is one of likeness" in said.text
    assert any("inputs.npz" in caveat for caveat in metric.caveats)


@pytest.mark.parametrize(
    "fault",
    [
        lambda values: np.roll(values, 1, axis=1),
        lambda values: values[..., ::-1].copy(),
        lambda values: 1.5 * values,  # a sharper softmax, which a likeliest class takes for a gain
        lambda values: values + 2.0 * np.eye(10, dtype=np.float32)[0],
    ],
    ids=["frames", "classes", "temperature", "bias"],
)
def test_a_fault_fails(compare: Compare, tmp_path: Path, fault: Callable[[Array], Array]) -> None:
    base = write_dump(tmp_path / "orig", OUTPUTS, config=LOGITS, inputs=INPUTS)
    port = write_dump(tmp_path / "port", [fault(one) for one in OUTPUTS], inputs=INPUTS)
    assert compare(base, port).exit_code == 1


def test_labels_give_accuracy_and_log_probability_which_torch_confirms(
    compare: Compare, tmp_path: Path
) -> None:
    labels = [np.where(np.arange(len(of)) % 5 == 0, -100, of) for of in FAVOURED]
    cand = with_noise(OUTPUTS, 3.0)
    base = write_dump(tmp_path / "orig", OUTPUTS, labels=labels)
    metrics = metrics_of(result := compare(base, write_dump(tmp_path / "port", cand)))
    assert result.exit_code == 1
    for side, outputs in (("base", OUTPUTS), ("candidate", cand)):
        pairs = [
            (torch.from_numpy(one[0]).double(), torch.from_numpy(of))
            for one, of in zip(outputs, labels, strict=True)
        ]
        losses = [torch.nn.functional.cross_entropy(*pair).item() for pair in pairs]
        right = [(x.argmax(1) == y)[y >= 0].double().mean().item() for x, y in pairs]
        assert getattr(metrics["label_logprob"], side) == pytest.approx(-np.mean(losses))
        assert getattr(metrics["acc"], side) == pytest.approx(np.mean(right))
    assert not [one for one in result.report.findings if one.kind == "own_reference"]


def test_a_classifier_has_one_row_and_one_label_a_document(
    compare: Compare, tmp_path: Path
) -> None:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 5, 60)
    outputs = [draw.normal(size=5) + 3.0 * np.eye(5)[label] for label in labels]
    base = write_dump(tmp_path / "orig", outputs, labels=[np.array(one) for one in labels])
    port = write_dump(tmp_path / "port", [one[None, :] + 1e-6 * one for one in outputs])
    result = compare(base, port)
    assert result.exit_code == 0
    right = np.mean([one.argmax() == label for one, label in zip(outputs, labels, strict=True)])
    accuracy = metrics_of(result)["acc"]
    assert (accuracy.base, accuracy.flips) == (pytest.approx(right), (0, 0))
    assert accuracy.same_answer == 1.0


def test_texts_are_decoded_as_transformers_does_and_counted_as_jiwer_does(
    compare: Compare, tmp_path: Path
) -> None:
    from transformers import Wav2Vec2CTCTokenizer

    texts = [reference_of(of) for of in FAVOURED]
    cand = with_noise(OUTPUTS, 2.5)
    base = write_dump(tmp_path / "orig", OUTPUTS, texts=texts, vocabulary=SYMBOLS)
    port = write_dump(tmp_path / "port", cand)
    result = compare(base, port)
    vocabulary = {symbol: number for number, symbol in enumerate((*SYMBOLS, "<unk>"))}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    tokenizer = Wav2Vec2CTCTokenizer(
        str(tmp_path / "vocab.json"), bos_token=None, eos_token=None, pad_token="<pad>"
    )
    metrics = metrics_of(result)
    for side, outputs in (("base", OUTPUTS), ("candidate", cand)):
        decoded = [tokenizer.decode(one[0].argmax(axis=1)) for one in outputs]
        words = [jiwer.wer(*pair) for pair in zip(texts, decoded, strict=True)]
        characters = [jiwer.cer(*pair) for pair in zip(texts, decoded, strict=True)]
        assert getattr(metrics["wer"], side) == pytest.approx(np.mean(words))
        assert getattr(metrics["cer"], side) == pytest.approx(np.mean(characters))
        corpus = f"{100.0 * jiwer.wer(texts, decoded):.4g}%"
        assert any(corpus in said for said in metrics["wer"].provenance)
    assert not metrics["wer"].higher_is_better
    assert metrics["cer"].outcome == "regressed"
    assert 0.0 <= metrics["wer"].same_answer < 1.0


def test_texts_of_documents_stay_in_the_samples(compare: Compare, tmp_path: Path) -> None:
    texts = [reference_of(of) for of in FAVOURED]
    base = write_dump(tmp_path / "orig", OUTPUTS, texts=texts, vocabulary=SYMBOLS)
    report = compare(base, write_dump(tmp_path / "port", with_noise(OUTPUTS, 2.5))).report
    words = {word for text in texts for word in text.split() if len(word) > 3}
    sent = json.dumps(compare_document(without_quotes(report)))
    assert words
    assert not [word for word in words if word in sent]
    assert report.run_folder is not None
    page = render_report(report, "html")
    assert "expected_logprob" in page


def test_states_are_held_to_a_margin_and_have_no_sigma(compare: Compare, tmp_path: Path) -> None:
    """Golden: the definition, in numpy; the base's own are 0 and 1 and do not scatter."""
    near, far = with_noise(OUTPUTS, 1e-3), with_noise(OUTPUTS, 0.5)
    base = write_dump(tmp_path / "orig", OUTPUTS, config=HIDDEN, inputs=INPUTS)
    port = write_dump(tmp_path / "port", near, inputs=INPUTS)
    other = write_dump(tmp_path / "other", far, inputs=INPUTS)
    result = compare(base, port)
    assert result.exit_code == 3
    assert "--gate-metric relative_error=1pp" in result.report.comparisons[0].reason
    result = compare(base, port, margin="1pp")
    assert result.exit_code == 0
    assert result.report.distributions == ()
    rows = np.concatenate([one[0] for one in OUTPUTS]).astype(np.float64)
    errors = [
        np.sqrt(np.mean((a[0].astype(np.float64) - b[0]) ** 2 / rows.var(axis=0)))
        for a, b in zip(OUTPUTS, near, strict=True)
    ]
    cosines = [
        torch.nn.functional.cosine_similarity(torch.from_numpy(a[0]), torch.from_numpy(b[0]))
        for a, b in zip(OUTPUTS, near, strict=True)
    ]
    metrics = metrics_of(result)
    assert metrics["relative_error"].base == metrics["relative_error"].base_stderr == 0.0
    assert metrics["relative_error"].candidate == pytest.approx(np.mean(errors), rel=1e-6)
    of_torch = np.mean([one.mean().item() for one in cosines])
    assert metrics["cosine"].candidate == pytest.approx(of_torch, abs=1e-6)
    assert compare(base, other, margin="1pp").exit_code == 1
    assert compare(base, other, margin="1pp", fail_on="certain").exit_code == 1


def test_a_channel_of_huge_values_hides_no_error_of_the_others(
    compare: Compare, tmp_path: Path
) -> None:
    """And a dead channel, of which rounding is all there is, makes none."""
    huge = [np.concatenate([1e3 * one[..., :1], one, 0.0 * one[..., :1]], -1) for one in OUTPUTS]
    moved = [one.copy() for one in huge]
    for one in moved:
        one[..., 1:6] = one[..., 1:6][..., ::-1]
        one[..., -1] = 1e-7
    base = write_dump(tmp_path / "orig", huge, config=HIDDEN)
    result = compare(base, write_dump(tmp_path / "port", moved), margin="1pp")
    assert result.exit_code == 1
    assert metrics_of(result)["relative_error"].candidate > 0.5
    for one, of in zip(moved, huge, strict=True):
        one[..., :-1] = of[..., :-1]
    twin = compare(base, write_dump(tmp_path / "twin", moved), margin="1pp")
    assert twin.exit_code == 0


def test_classes_that_are_masked_on_both_sides_are_no_fault(
    compare: Compare, tmp_path: Path
) -> None:
    masked = [np.concatenate([one, np.full_like(one, -np.inf)], -1) for one in OUTPUTS]
    near = [
        np.concatenate([one, np.full_like(one, -np.inf)], -1) for one in with_noise(OUTPUTS, 1e-5)
    ]
    base = write_dump(tmp_path / "orig", masked, config=LOGITS)
    result = compare(base, write_dump(tmp_path / "port", near))
    assert result.exit_code == 0
    assert (result.report.distributions[0].kl.value or 1.0) < 1e-8
    masked[3][0, 2, FAVOURED[3][2]] = -np.inf
    lost = compare(base, write_dump(tmp_path / "lost", masked))
    assert lost.exit_code == 1


def test_more_points_are_states_of_their_own_beside_logits(
    compare: Compare, tmp_path: Path
) -> None:
    states = [np.random.default_rng(n).normal(size=(20 + n, 8)) for n in range(12)]
    config = {"output": "logits", "hidden": ["encoder"]}
    base = write_dump(tmp_path / "orig", OUTPUTS, config=config, points={"encoder": states})
    moved = [one + 1e-6 for one in states]
    port = write_dump(tmp_path / "port", OUTPUTS, points={"encoder": moved})
    limits = {"relative_error": "1pp", "cosine": "1pp"}
    result = compare(base, port, gate_limits=limits)
    assert result.exit_code == 0
    assert {one.task for one in result.report.comparisons} == {"output", "encoder:out"}


def test_several_candidates_have_a_table(tmp_path: Path) -> None:
    base = write_dump(tmp_path / "orig", OUTPUTS, config=LOGITS, inputs=INPUTS)
    sizes = {"near": 1e-4, "far": 3.0}
    found = evalguard.compare_several(
        base,
        [
            write_dump(tmp_path / name, with_noise(OUTPUTS, size), inputs=INPUTS)
            for name, size in sizes.items()
        ],
        quiet=True,
        output_path=tmp_path / "reports",
    )
    assert [one.report.gate.state for one in found.results] == ["passed", "regressed"]
    assert found.exit_code == 1


def test_pages_documents_and_screens_are_those_of_any_comparison(
    compare: Compare, tmp_path: Path
) -> None:
    texts = [reference_of(of) for of in FAVOURED]
    base = write_dump(tmp_path / "orig", OUTPUTS, texts=texts, vocabulary=SYMBOLS, inputs=INPUTS)
    port = write_dump(tmp_path / "port", with_noise(OUTPUTS, 2.5), inputs=INPUTS)
    result = compare(base, port, output=[tmp_path / "page.html", tmp_path / "result.json"])
    assert result.exit_code == 1
    assert result.report.base.kind == "dump"
    document = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert document["base"]["kind"] == "dump"
    assert "evalguard bisect" not in render_terminal(result.report, width=100, color=False)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "label_logprob" not in page
    assert re.search(r"output", page)


def test_two_folders_of_the_same_numbers_are_said_to_be_one(
    compare: Compare, tmp_path: Path
) -> None:
    base = write_dump(tmp_path / "orig", OUTPUTS, config=LOGITS)
    result = compare(base, write_dump(tmp_path / "port", OUTPUTS))
    assert result.exit_code == 0
    assert "same_model" in {one.kind for one in result.report.findings}


def test_exchanged_documents_are_refused(compare: Compare, tmp_path: Path) -> None:
    outputs, _ = make_logits(2)
    given = [INPUTS[0], INPUTS[0][:, ::-1].copy()]
    outputs[1] = outputs[1][:, :20]
    base = write_dump(tmp_path / "orig", outputs, config=LOGITS, inputs=given)
    port = write_dump(tmp_path / "port", outputs[::-1], inputs=given[::-1])
    with pytest.raises(
        MisalignedRunsError, match=r"document 000: the inputs \(input_values\) in .*port are not"
    ):
        compare(base, port)


@pytest.mark.parametrize("output", ["logits", "hidden"])
def test_exchanged_documents_without_inputs_are_refused_by_their_numbers(
    compare: Compare, tmp_path: Path, output: str
) -> None:
    outputs = with_noise([one[:, :20] for one in OUTPUTS], 1e-3)
    base = write_dump(tmp_path / "orig", outputs, config={"output": output})
    port = write_dump(tmp_path / "port", [outputs[1], outputs[0], *outputs[2:]])
    words = "documents look exchanged: 000 of .*port is as 001 of .*orig .* one of 2 of 12"
    with pytest.raises(MisalignedRunsError, match=words):
        compare(base, port)


def test_a_model_that_mixes_up_documents_whose_inputs_are_known_fails(
    compare: Compare, tmp_path: Path
) -> None:
    outputs = [one[:, :20] for one in OUTPUTS]
    base = write_dump(tmp_path / "orig", outputs, config=LOGITS, inputs=INPUTS)
    port = write_dump(tmp_path / "port", outputs[::-1], inputs=INPUTS)
    assert compare(base, port).exit_code == 1


def test_inputs_beside_the_documents_count_likewise(compare: Compare, tmp_path: Path) -> None:
    base = write_dump(tmp_path / "orig", OUTPUTS, config=LOGITS)
    port = write_dump(tmp_path / "port", with_noise(OUTPUTS, 1e-5))
    for folder in (base, port):
        np.savez(folder / "inputs.npz", ids=np.arange(12, dtype=np.int32))
    (metric,) = compare(base, port).report.comparisons
    assert metric.caveats == ()
    np.savez(port / "inputs.npz", ids=np.arange(12)[::-1])
    with pytest.raises(
        MisalignedRunsError, match=r"the inputs beside the documents .* are not those in"
    ):
        compare(base, port)


def test_a_dump_beside_a_model_or_a_run_is_refused(compare: Compare, tmp_path: Path) -> None:
    base = write_dump(tmp_path / "orig", OUTPUTS, config=LOGITS)
    with pytest.raises(UsageError, match="folder of dumped outputs, and sshleifer/x is none") as of:
        compare(base, "sshleifer/x")
    assert "dump what sshleifer/x puts out for the same inputs" in of.value.hint
    with pytest.raises(UsageError, match="no model is loaded, so model arguments"):
        compare(base, base, cand_model_args={"dtype": "float16"})
    for options in ({"tasks": ["arc_easy"]}, {"limit": 5}, {"num_fewshot": 2}):
        with pytest.raises(UsageError, match="no model is asked, so --"):
            compare(base, base, **options)


def test_a_missing_jiwer_is_said_with_what_to_install(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [reference_of(of) for of in FAVOURED]
    base = write_dump(tmp_path / "orig", OUTPUTS, texts=texts, vocabulary=SYMBOLS)
    monkeypatch.setitem(__import__("sys").modules, "jiwer", None)
    with pytest.raises(EvaluationError, match="need jiwer") as raised:
        compare(base, base)
    assert extra_command("ctc") in raised.value.hint
