"""llama.cpp's logits file as a base: what it holds is compared, and what it cannot say is said."""

from __future__ import annotations

import lzma
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logits_files import cut_windows, write_file_of_model, write_logits_file
from small_world import SmallWorld, make_world

import evalguard
from evalguard.core.tensors.precision_vote import round_mantissa
from evalguard.errors import EvaluationError, UsageError
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import render_report
from evalguard.run.result import CompareResult

Compare = Callable[..., CompareResult]
CONTEXT = 32
HERE = Path(__file__).parent / "llama_logits"


@pytest.fixture(scope="module")
def world(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallWorld:
    return make_world(tmp_path_factory.mktemp("logits"), tiny_llama)


@pytest.fixture(scope="module")
def file(world: SmallWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten windows of a model."""
    text = " ".join(f"the {word} of {number} is here" for number in range(60) for word in "abcde")
    tokens = cut_windows(world.models["llama"], text, CONTEXT)[:10]
    return write_file_of_model(
        tmp_path_factory.mktemp("file") / "base.kld", world.models["llama"], tokens
    )


@pytest.fixture
def compare(world: SmallWorld, tmp_path: Path) -> Compare:
    def compared(base: Path, candidate: str | Path, **options: Any) -> CompareResult:
        places = {"output_path": tmp_path / "out", "cache_dir": tmp_path / "cache"}
        given = {"quiet": True, "device": "cpu", **places, **options}
        return evalguard.compare(base, world.models.get(str(candidate), candidate), **given)

    return compared


def test_a_model_beside_its_own_file_is_unchanged(compare: Compare, file: Path) -> None:
    result = compare(file, "llama")
    assert result.exit_code == 0
    (metric,) = result.report.comparisons
    assert (metric.task, metric.metric, metric.n) == ("base.kld", "perplexity", 10)
    (found,) = result.report.distributions
    assert found.positions == 10 * (CONTEXT - 1 - CONTEXT // 2)
    assert found.kl.bounds is not None
    assert found.kl.bounds[0] < 1e-7
    assert not found.moved
    assert not found.exact
    (told,) = [one for one in result.report.findings if one.kind == "rounded_base"]
    assert told.values["scored"] == found.positions
    assert not any("token ids" in caveat for caveat in metric.caveats)


def test_another_model_is_as_far_as_it_is(compare: Compare, world: SmallWorld, file: Path) -> None:
    """Against transformers and float64: the mean KL over the second halves of all windows."""
    from transformers import AutoModelForCausalLM

    result = compare(file, "other")
    tokens = np.frombuffer(file.read_bytes()[20:], dtype="<i4", count=10 * CONTEXT)
    read = torch.from_numpy(tokens.astype(np.int64)).reshape(10, CONTEXT)
    rows = []
    for name in ("llama", "other"):
        model = AutoModelForCausalLM.from_pretrained(world.models[name], dtype=torch.float32)
        with torch.no_grad():
            logits = model(_with_bos(world.models[name], read)).logits[:, CONTEXT // 2 : -1]
        rows.append(torch.log_softmax(logits.double(), dim=-1))
    exact = float((rows[0].exp() * (rows[0] - rows[1])).sum(-1).mean())
    (found,) = result.report.distributions
    assert found.kl.bounds is not None
    assert found.kl.bounds[0] < exact < found.kl.bounds[1]
    assert found.kl.value == pytest.approx(exact, abs=2e-4)


def _with_bos(model: Path, read: torch.Tensor) -> torch.Tensor:
    from transformers import AutoTokenizer

    tokenizer, read = AutoTokenizer.from_pretrained(model), read.clone()
    if tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]:
        read[:, 0] = tokenizer.bos_token_id
    return read


def test_the_block_of_llama_cpp_stands_in_the_long_form(compare: Compare, file: Path) -> None:
    report = compare(file, "other").report
    (found,) = report.distributions
    for text in (
        render_terminal(report, width=80, color=False, verbose=True),
        render_report(report, "text"),
        render_report(report, "markdown"),
    ):
        lines = text.splitlines()
        start = lines.index("====== Perplexity statistics ======")
        assert lines[start + 1].startswith("Mean PPL(Q)                   : ")
        assert f"Mean    KLD: {found.kl.value:10.6f} ± " in text
        assert "Same top p: " in text
    assert "Mean PPL(Q)" not in render_terminal(report, width=80, color=False)


def test_what_was_cut_off_counts_alike_on_both_sides(
    compare: Compare, world: SmallWorld, tmp_path: Path
) -> None:
    """Tokens 20 and more nats below the best: the file says 16, and no more is held against the
    very same model."""
    tokens = cut_windows(world.models["llama"], "a b c d e f g h " * 60, CONTEXT)[:6]
    model = sharpened(world.models["llama"], tmp_path / "sharp")
    path = write_file_of_model(tmp_path / "sharp.kld", model, tokens)
    result = compare(path, model)
    (told,) = [one for one in result.report.findings if one.kind == "rounded_base"]
    assert told.values["cut_off"]
    (metric,) = result.report.comparisons
    assert metric.sigma is not None
    assert abs(metric.sigma) < 0.01
    assert result.exit_code == 0


def sharpened(model: Path, folder: Path) -> Path:
    """The same model with logits ten times as large."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    weights[name] = weights[name] * 40
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_first_windows_are_a_sample(compare: Compare, file: Path) -> None:
    assert compare(file, "llama", limit=4).report.comparisons[0].n == 4


@pytest.mark.slow
def test_a_worker_gives_the_same(compare: Compare, file: Path, tmp_path: Path) -> None:
    here = compare(file, "other").report.distributions
    there = compare(file, "other", worker="always", cache_dir=tmp_path / "else").report
    assert there.distributions == here


def damage(content: bytes, how: str) -> bytes:
    changed, rows = bytearray(content), 20 + 4 * 10 * CONTEXT
    if how == "cut":
        return content[:-500]
    if how == "header":
        return content[:15]
    if how == "longer":
        return content + b"more"
    if how == "magic":
        return b"_logitz_" + content[8:]
    if how == "token":
        changed[20:24] = struct.pack("<i", -1)
    if how == "nan":
        changed[rows : rows + 4] = struct.pack("<f", float("nan"))
    if how == "empty":
        changed[16:20] = struct.pack("<i", 0)
    return bytes(changed)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", r"is not whole: it says 10 windows of 32 tokens, \d+ in all .*holds 9 of them"),
        ("longer", "goes on behind its end"),
        ("header", "is no logits file of llama.cpp"),
        ("magic", "no tasks to compare on|is a file, not a model folder"),
        ("token", "has tokens beyond its"),
        ("nan", "damaged at byte 1,300, position 16 of window 0: a row has the scale nan"),
        ("empty", "is damaged: it says 0 windows"),
    ],
)
def test_a_damaged_file_is_refused_before_a_model_is_loaded(
    compare: Compare, file: Path, tmp_path: Path, how: str, message: str
) -> None:
    path = tmp_path / "bad.kld"
    path.write_bytes(damage(file.read_bytes(), how))
    with pytest.raises(UsageError, match=message):
        compare(path, "llama")


def test_a_damaged_row_is_found_where_it_is_read(
    compare: Compare, file: Path, tmp_path: Path
) -> None:
    content, path = bytearray(file.read_bytes()), tmp_path / "bad.kld"
    content[-400:] = b"\xff" * 400
    path.write_bytes(content)
    with pytest.raises(EvaluationError, match="position 30 of window 9: a row has probabilities"):
        compare(path, "llama")


def test_another_vocabulary_is_refused(compare: Compare, tmp_path: Path, world: SmallWorld) -> None:
    tokens = cut_windows(world.models["llama"], "a b c d " * 60, CONTEXT)[:4]
    logits = np.random.default_rng(0).normal(size=(4, CONTEXT, 3000)).astype(np.float32)
    path = write_logits_file(tmp_path / "wide.kld", tokens, list(logits))
    with pytest.raises(EvaluationError, match="is of a vocabulary of 3,000 tokens"):
        compare(path, "llama")


def test_the_ids_of_another_tokenizer_are_refused(
    compare: Compare, file: Path, tmp_path: Path
) -> None:
    """The same number of tokens, in another order."""
    content = file.read_bytes()
    vocabulary = struct.unpack("<i", content[12:16])[0]
    order = np.random.default_rng(0).permutation(vocabulary).astype("<i4")
    ids = np.frombuffer(content[20 : 20 + 40 * CONTEXT], dtype="<i4")
    path = tmp_path / "permuted.kld"
    path.write_bytes(content[:20] + order[ids].tobytes() + content[20 + 40 * CONTEXT :])
    with pytest.raises(EvaluationError, match="not those of the model's tokenizer"):
        compare(path, "llama")


def test_windows_longer_than_the_model_reads_are_refused(
    compare: Compare, world: SmallWorld, tmp_path: Path
) -> None:
    tokens = cut_windows(world.models["llama"], "a b c d " * 4000, 4096)[:1]
    logits = np.zeros((1, 4096, 8), dtype=np.float32)
    path = write_logits_file(tmp_path / "long.kld", np.minimum(tokens, 7), list(logits))
    with pytest.raises(EvaluationError, match=r"windows of 4,096 tokens, and the model reads"):
        compare(path, "llama")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": ["sw_word"]}, "has no answers to sw_word"),
        ({"apply_chat_template": True}, "a chat template is to be applied"),
        ({"distributions": "off"}, "which distributions off does not compare"),
        ({"base_set": {"a": 1}}, "no model is loaded"),
    ],
)
def test_options_that_a_file_cannot_follow_are_refused(
    compare: Compare, file: Path, given: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compare(file, "llama", **given)


@pytest.mark.data
def test_the_figures_are_those_that_llama_perplexity_printed(
    compare: Compare, shared_data: Path, tmp_path: Path
) -> None:
    """llama-perplexity of llama.cpp b11063, float32, stories260K and the same with 4 bits of
    mantissa: every printed digit but the last one of some, since its sums are float32."""
    from safetensors.torch import load_file, save_file

    candidate = tmp_path / "cut"
    shutil.copytree(shared_data / "stories260K" / "hf", candidate)
    weights = load_file(candidate / "model.safetensors")
    kept = {k: torch.from_numpy(round_mantissa(v.float().numpy(), 4)) for k, v in weights.items()}
    save_file(kept, candidate / "model.safetensors", metadata={"format": "pt"})
    base = tmp_path / "stories260K.kld"
    base.write_bytes(lzma.decompress((HERE / "stories260K.kld.xz").read_bytes()))
    lines = render_report(compare(base, candidate).report, "text").splitlines()
    printed = (HERE / "printed.txt").read_text(encoding="utf-8").splitlines()
    start = lines.index(printed[0])
    number = re.compile(r"-?\d+\.\d+")
    for ours, theirs in zip(lines[start : start + len(printed)], printed, strict=True):
        assert number.sub("#", ours) == number.sub("#", theirs)
        for one, other in zip(number.findall(ours), number.findall(theirs), strict=True):
            last = 10.0 ** -len(other.partition(".")[2])
            assert abs(float(one) - float(other)) < 2.5 * last, theirs
