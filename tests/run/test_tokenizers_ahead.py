"""What a model's tokenizer alone shows is refused before the model ahead of it is scored."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeScorer

from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.settings import OwnEnvironment, Variant
from evalguard.engine.choices import resolve_choices
from evalguard.engine.score_models import score_models
from evalguard.engine.sources import ModelSource
from evalguard.errors import MisalignedRunsError
from evalguard.models.runtimes.tokenizer import FolderTokenizer, TextEncoder, TokenizedTexts
from evalguard.models.tokenizers import entries_digest

VOCABULARY = "the vocabularies of base and candidate differ"
IDS = "base and candidate encode 8 of 8 requests differently"
PIECES = "the token ids that the base reads are other texts in the vocabulary of the candidate"

Score = Callable[..., list[str]]


class OpenedError(Exception):
    """The candidate's turn has come: nothing was refused before."""


class Base(FakeScorer):
    """Reads with the tokenizer of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("base", cached=False)
        self.tokenizer = FolderTokenizer(folder)

    def describe(self) -> Any:
        entries = sorted(self.tokenizer.vocabulary.items())
        return replace(
            super().describe(),
            vocabulary_digest=entries_digest(entries),
            vocabulary_size=len(entries),
        )

    def encode(self, requests: Any) -> list[tuple[int, ...]]:
        encoder = TextEncoder(TokenizedTexts(self.tokenizer))
        return [encoder.encode(one) for one in requests]


@pytest.fixture
def score(
    models: dict[str, Path], task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Score:
    """Score a base and a candidate, which is not loaded; the documents that the base had by then"""

    def scored(candidate: Variant, **given: Any) -> list[str]:
        base = Base(models["llama"])

        def opened(variant: Variant, *_: Any, **__: Any) -> FakeScorer:
            if variant.name == "base":
                return base
            raise OpenedError

        monkeypatch.setattr("evalguard.engine.run_context.open_scorer", opened)
        sources = [
            ModelSource(name="base", variant=Variant(name="base", model="fake", model_args={})),
            ModelSource(name="cand", variant=candidate),
        ]
        options = CompareOptions(
            tasks=("sw_word",), include_path=(task_folder,), quiet=True, cache_dir=tmp_path, **given
        )
        choices = resolve_choices(sources[0], sources[1], GuardSet(guards=()), options)
        try:
            score_models(sources, choices, options)
        finally:
            before[:] = base.scored
        raise AssertionError

    before: list[Any] = []
    scored.before = before  # type: ignore[attr-defined]
    return scored


def variant(model: str, path: Path, **more: Any) -> Variant:
    arguments = {"pretrained": str(path), **more.pop("model_args", {})}
    return Variant(name="cand", model=model, model_args=arguments, **more)


def graph(folder: Path, tokenizer: Path) -> Path:
    folder.mkdir()
    (folder / "model.onnx").write_text("a graph")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(tokenizer / name, folder)
    return folder


def gguf(path: Path, tokens: list[str], kinds: list[int]) -> Path:
    """A header with the tokens of a file, and no tensors (docs/gguf.md of ggml)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    array = struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens))
    types = struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds)
    keys = text("tokenizer.ggml.tokens") + array + text("tokenizer.ggml.token_type") + types
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + keys)
    return path


def tokens_of(folder: Path) -> list[str]:
    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(ids, key=ids.__getitem__)


def kinds_of(tokens: list[str]) -> list[int]:
    return [3 if one in ("<s>", "</s>") else 1 for one in tokens]


def test_another_vocabulary_of_a_graph_is_refused_before_the_base_is_scored(
    score: Score, models: dict[str, Path], tmp_path: Path
) -> None:
    other = graph(tmp_path / "other", models["vocabulary"])
    for folder, allowed, expected in (
        (other, (), MisalignedRunsError),
        (other, ("tokens",), OpenedError),
        (graph(tmp_path / "same", models["llama"]), (), OpenedError),
    ):
        with pytest.raises(expected) as raised:
            score(variant("onnx", folder), allow_differing=frozenset(allowed))
        assert bool(score.before) == (expected is OpenedError)  # type: ignore[attr-defined]
        assert expected is OpenedError or VOCABULARY in str(raised.value)


def test_a_bos_that_a_runtime_leaves_out_is_refused_before_the_base_is_scored(
    score: Score, models: dict[str, Path], tmp_path: Path
) -> None:
    folder = graph(tmp_path / "graph", models["llama"])
    with pytest.raises(MisalignedRunsError, match=IDS) as raised:
        score(variant("onnx", folder, model_args={"add_bos_token": False}))
    assert "only the base reads token" in raised.value.hint
    assert score.before == []  # type: ignore[attr-defined]


def test_another_vocabulary_of_a_folder_is_refused_where_one_model_is_loaded_at_a_time(
    score: Score, models: dict[str, Path]
) -> None:
    with pytest.raises(MisalignedRunsError, match=VOCABULARY):
        score(variant("hf", models["vocabulary"]), memory="sequential")
    assert score.before == []  # type: ignore[attr-defined]
    with pytest.raises(OpenedError):
        score(variant("hf", models["llama"]), memory="sequential")
    assert score.before  # type: ignore[attr-defined]


def test_a_gguf_in_whose_tokens_the_bases_ids_are_other_texts_is_refused_by_its_header(
    score: Score, models: dict[str, Path], tmp_path: Path
) -> None:
    own = tokens_of(models["llama"])
    turned = [*own[:3], *reversed(own[3:])]
    few = own[: len(own) // 2]
    padded = [*own, "[PAD0]", "[PAD1]"]
    for name, tokens, refused in (
        ("own", own, False),
        ("turned", turned, True),
        ("few", few, True),
        ("padded", padded, False),
    ):
        file = gguf(tmp_path / f"{name}.gguf", tokens, kinds_of(tokens))
        with pytest.raises(MisalignedRunsError if refused else OpenedError) as raised:
            score(variant("llama_cpp", file))
        assert bool(score.before) == (not refused)  # type: ignore[attr-defined]
        assert not refused or PIECES in str(raised.value)


def test_pieces_that_say_nothing_of_a_text_refuse_nothing(
    score: Score, models: dict[str, Path], tmp_path: Path
) -> None:
    """Bytes have no letters; marks that a text spells out are left to llama.cpp."""
    tokens = tokens_of(models["llama"])
    turned = [*tokens[:3], *reversed(tokens[3:])]
    for kinds in ([6] * len(tokens), [2] * len(tokens), [3] * len(tokens)):
        with pytest.raises(OpenedError):
            score(variant("llama_cpp", gguf(tmp_path / "m.gguf", turned, kinds)))


def test_what_only_another_environment_or_a_damaged_file_says_is_left_to_loading(
    score: Score, models: dict[str, Path], tmp_path: Path
) -> None:
    elsewhere = OwnEnvironment(requirements=("onnxruntime",))
    other = graph(tmp_path / "graph", models["vocabulary"])
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF")
    for candidate in (variant("onnx", other, environment=elsewhere), variant("llama_cpp", cut)):
        with pytest.raises(OpenedError):
            score(candidate)
