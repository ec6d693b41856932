"""Another assignment on a loaded model is, bit for bit, what loading it so would be."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opened_models import OpenedScorer
from tiny_models import save_gemma2, save_llama
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from evalguard.core.scorer import ReassignableScorer, Request, ScoringPolicy
from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.errors import EvaluationError, SettingError
from evalguard.models.lm_scorer import LMScorer
from evalguard.worker.messages import DESCRIPTION, RESPONSES

POLICY = ScoringPolicy(device="cpu", threads=1)
Values = Mapping[str, Value]


def save_gpt2(folder: Path) -> Path:
    from tiny_models import save_tokenizer

    size = save_tokenizer(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=48, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def norms(name: str) -> dict[str, list[Value]]:
    return {f"attr:{name}.weight": [1.0, 0.5, [0.01 * i for i in range(32)]]}


DTYPES: list[Value] = ["float32", "bfloat16", "float64"]
LLAMA: dict[str, list[Value]] = {
    "attr:model.layers.*.self_attn.scaling": [8**-0.5, 0.4, 1],
    "attr:model.layers.1.self_attn.is_causal": [True, False],
    "attr:**.*norm.variance_epsilon": [1e-6, 0.1],
    "attr:model.rotary_emb.inv_freq": [0.0, [1.0, 0.5, 0.1, 0.01]],
    **norms("model.norm"),
    "generation.repetition_penalty": [1.0, 5.0],
    "attr:model.embed_tokens.weight": [0.25],
    "dtype:model.layers.*": DTYPES,
    "dtype:model.layers.0.self_attn": DTYPES,
    "dtype:model.**norm": DTYPES,
    "dtype:lm_head": DTYPES,  # tied to the embeddings
    "dtype:model.embed_tokens": DTYPES,
    "dtype:model.rotary_emb": DTYPES,
}
GEMMA2: dict[str, list[Value]] = {
    "attr:model.layers.*.self_attn.scaling": [8**-0.5, 0.4],
    "attr:model.layers.*.self_attn.attn_logit_softcapping": [50.0, 1.0, None],
    "attr:model.layers.*.input_layernorm.eps": [1e-6, 0.5],
    **norms("model.norm"),
    "dtype:model.layers.0": DTYPES,
    "dtype:model.layers.*.mlp": DTYPES,
    "dtype:lm_head": DTYPES,
}
GPT2: dict[str, list[Value]] = {
    "attr:transformer.h.*.attn.scaling": [8**-0.5, 0.4],
    "attr:transformer.ln_f.eps": [1e-5, 0.1],
    "attr:transformer.ln_f.bias": [0.0, 0.3],
    "dtype:transformer.h.1": DTYPES,
    "dtype:transformer.wte": DTYPES,  # tied to the output embedding
    "dtype:**.ln_*": DTYPES,
}
Save = Callable[[Path], Path]
MODELS: dict[str, tuple[Save, dict[str, list[Value]]]] = {
    "llama": (save_llama, LLAMA),
    "llama-untied": (functools.partial(save_llama, tied=False), LLAMA),
    "gemma2": (save_gemma2, GEMMA2),
    "gpt2": (save_gpt2, GPT2),
}


def variant(folder: Path, values: Values, **fields: Any) -> Variant:
    chosen = tuple(
        Setting(name=target, reference=None, candidate=value, target=Target.parse(target))
        for target, value in values.items()
    )
    given: dict[str, Any] = {
        "name": "port",
        "model": "hf",
        "model_args": {"pretrained": str(folder), "dtype": "float32"},
        **fields,
    }
    return Variant(settings=chosen, assignment=dict(values), **given)


def blocks() -> Iterator[list[Request]]:
    texts = ["Mara carried the lantern", "Nobody at the pier had seen the boat, and the keeper", ""]
    tails = {
        "loglikelihood": (" and waited", " boat"),
        "loglikelihood_rolling": (),
        "generate_until": ({"until": ["."], "max_gen_toks": 3, "do_sample": False},),
    }
    for kind, own in tails.items():
        arguments = [(text, tail) for text in texts for tail in own] or [(text,) for text in texts]
        if kind == "generate_until":
            arguments = arguments[:2]
        yield [
            Request(task="t", doc_id=i, index=0, kind=kind, arguments=one)  # type: ignore[arg-type]
            for i, one in enumerate(arguments)
        ]


def told(scorer: ReassignableScorer) -> tuple[object, ...]:
    """Everything that a scorer shows: what it is, and its answers, with every bit of them."""
    answers = [RESPONSES.encode(tuple(scorer.score(block))) for block in blocks()]
    encoded = [scorer.encode(block) for block in blocks()]
    return DESCRIPTION.encode(scorer.describe()), answers, encoded


def opened(one: Variant, cache: Path, *, reusable: bool = False) -> ReassignableScorer:
    return load_scorer(one, POLICY, cache_dir=cache, reusable=reusable)


class Fresh:
    """What loading anew shows, for each assignment once; or the error that it ends with."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self._known: dict[str, object] = {}

    def __call__(self, values: Values) -> object:
        key = repr(values)
        if key not in self._known:
            try:
                with contextlib.closing(opened(variant(self.folder, values), self.cache)) as one:
                    self._known[key] = told(one)
            except EvaluationError as error:
                self._known[key] = f"{type(error).__name__}: {error}"
        return self._known[key]


def another(folder: Path, place: Path) -> Path:
    """The same model with other weights."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.875)
    model.save_pretrained(place)
    return place


SLOW = ("llama-untied", "gpt2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    save, targets = MODELS[request.param]
    folder = save(tmp_path_factory.mktemp(request.param))
    other = str(another(folder, tmp_path_factory.mktemp("other")))
    first = "transformer.h.0" if request.param == "gpt2" else "model.layers.0"
    taken: dict[str, list[Value]] = {f"weights:{first}": [None, other], "weights:**.mlp": [other]}
    return {**targets, **taken}, Fresh(folder, tmp_path_factory.mktemp("cache"))


def assignments(targets: Mapping[str, list[Value]]) -> st.SearchStrategy[dict[str, Value]]:
    """Values for some of the settings: which ones there are differs, too."""
    each = {target: st.sampled_from(values) for target, values in targets.items()}
    return st.fixed_dictionaries({}, optional=each)


@hypothesis_settings(
    max_examples=3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_after_any_sequence_of_assignments_a_model_is_what_loading_it_so_gives(
    model: Any, data: st.DataObject
) -> None:
    targets, fresh = model
    sequence = data.draw(st.lists(assignments(targets), min_size=2, max_size=4), label="sequence")
    scorer: ReassignableScorer | None = None
    for values in sequence:
        one = variant(fresh.folder, values)
        found: object = None
        try:
            if scorer is None:
                scorer = opened(one, fresh.cache, reusable=True)
            else:
                assert scorer.reassign(one)
            found = told(scorer)
        except EvaluationError as error:
            found, scorer = f"{type(error).__name__}: {error}", None
        assert found == fresh(values)


SCALING = "attr:model.layers.*.self_attn.scaling"
NORM = "dtype:model.norm"


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may reach into the model behind a scorer."""
    monkeypatch.setattr("evalguard.models.lm_scorer.LMScorer", OpenedScorer)


@pytest.fixture
def llama(tiny_llama: Path, tmp_path: Path, reachable: None) -> Callable[..., OpenedScorer]:
    def start(values: Values, **options: Any) -> OpenedScorer:
        scorer = opened(variant(tiny_llama, values), tmp_path, reusable=True, **options)
        assert isinstance(scorer, OpenedScorer)
        return scorer

    return start


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({SCALING: 0.4, "config.rms_norm_eps": 0.1}, {}),
        ({SCALING: 0.4, "model_args.max_length": 12}, {}),
        ({SCALING: 0.4, "model_args.add_bos_token": False}, {}),
        ({SCALING: 0.4, f"call:{Path(__file__).name}:no_such_hook": 1}, {"allow_code": True}),
        ({SCALING: 0.4, "env.EVALGUARD_NO_SUCH": "1"}, {}),
        ({SCALING: 0.4}, {"model_args": {"pretrained": "PLACE", "dtype": "bfloat16"}}),
        ({SCALING: 0.4}, {"trust_remote_code": True}),
    ],
)
def test_what_only_loading_can_do_is_left_to_loading(
    llama: Any, tiny_llama: Path, values: Values, fields: dict[str, Any]
) -> None:
    if "model_args" in fields:
        fields = {"model_args": {**fields["model_args"], "pretrained": str(tiny_llama)}}
    scorer = llama({SCALING: 0.3})
    assert not scorer.reassign(variant(tiny_llama, values, **fields))
    with pytest.raises(EvaluationError, match="left between two assignments") as caught:
        scorer.encode(next(blocks()))
    assert caught.value.hint == "load it anew"
    scorer.close()


def test_a_model_that_was_not_opened_for_it_takes_no_other_assignment(
    tiny_llama: Path, tmp_path: Path
) -> None:
    scorer = opened(variant(tiny_llama, {SCALING: 0.3}), tmp_path)
    assert not scorer.reassign(variant(tiny_llama, {SCALING: 0.4}))


def test_files_that_changed_are_loaded_anew(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    scorer = opened(variant(folder, {SCALING: 0.3}), tmp_path, reusable=True)
    (folder / "generation_config.json").write_text("{}")
    assert not scorer.reassign(variant(folder, {SCALING: 0.3}))


@pytest.mark.parametrize("bad", [{SCALING: "wide"}, {NORM: "int8"}, {"attr:model.nrm.weight": 1}])
def test_after_a_value_that_cannot_be_the_model_is_of_no_use_and_says_so(
    llama: Any, tiny_llama: Path, bad: Values
) -> None:
    scorer = llama({SCALING: 0.3, NORM: "bfloat16"})
    with pytest.raises(SettingError):
        scorer.reassign(variant(tiny_llama, bad))
    for _ in range(2):
        with pytest.raises(EvaluationError, match="left between two assignments"):
            scorer.score(next(blocks()))
        with pytest.raises(EvaluationError, match="left between two assignments"):
            scorer.reassign(variant(tiny_llama, {SCALING: 0.3}))
    scorer.close()
    with pytest.raises(EvaluationError, match="closed"):
        scorer.score(next(blocks()))


def test_a_model_that_keeps_something_of_what_it_read_is_loaded_anew(
    llama: Any, tiny_llama: Path
) -> None:
    scorer = llama({SCALING: 0.3})
    with torch.inference_mode():  # as a forward pass would
        scorer.lm.model.model.norm.weight.mul_(1.5)
    assert not scorer.reassign(variant(tiny_llama, {SCALING: 0.4}))


@pytest.mark.parametrize(("asked", "again"), [(512, 512), (0, 32)])
def test_batches_that_were_made_smaller_are_those_of_loading_again(
    tiny_llama: Path, tmp_path: Path, asked: int, again: int
) -> None:
    from evalguard.models.failures import BatchTooLargeError

    policy = ScoringPolicy(device="cpu", threads=1, token_budget=asked)

    def loaded(value: Value) -> ReassignableScorer:
        one = variant(tiny_llama, {SCALING: value})
        return load_scorer(one, policy, cache_dir=tmp_path, reusable=True)

    scorer = loaded(0.3)
    assert isinstance(scorer, LMScorer)
    assert scorer.make_room(BatchTooLargeError("no room", tokens=64, sequences=2, shared=False))
    assert scorer.describe().computation["token_budget"] == 32
    assert scorer.reassign(variant(tiny_llama, {SCALING: 0.4}))
    assert scorer.describe().computation["token_budget"] == again
    assert told(scorer) == told(loaded(0.4))


def test_checks_of_how_a_model_computes_are_made_anew(
    llama: Any, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        reason = "of the assignment before"
        patch.setattr(
            "evalguard.models.hf.batch_scoring.build_scored_rows", lambda lm: (None, reason)
        )
        scorer = llama({SCALING: 0.3})
    assert scorer.describe().computation["scorer"] == "full logits"
    assert reason in str(scorer.describe().caveats)
    assert scorer.reassign(variant(tiny_llama, {SCALING: 0.4}))
    assert scorer.describe().computation["scorer"] == "fast"
    assert reason not in str(scorer.describe().caveats)


def test_weights_that_were_replaced_are_the_very_same_again(llama: Any, tiny_llama: Path) -> None:
    scorer = llama({})
    model = scorer.lm.model
    own = dict(model.named_parameters(remove_duplicate=False))
    assert own["lm_head.weight"] is own["model.embed_tokens.weight"]
    assert scorer.reassign(variant(tiny_llama, {"dtype:lm_head": "bfloat16", NORM: "bfloat16"}))
    now = dict(model.named_parameters(remove_duplicate=False))
    assert now["lm_head.weight"] is not now["model.embed_tokens.weight"]
    assert scorer.reassign(variant(tiny_llama, {}))
    again = dict(model.named_parameters(remove_duplicate=False))
    assert all(again[name] is one for name, one in own.items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_generation_config_is_as_it_was_loaded_again(llama: Any, tiny_llama: Path) -> None:
    scorer = llama({"generation.repetition_penalty": 5.0})
    config = scorer.lm.model.generation_config
    assert scorer.reassign(variant(tiny_llama, {}))
    assert scorer.lm.model.generation_config is config
    assert config.repetition_penalty != 5.0


def test_weights_that_memory_has_no_room_for_are_not_kept(
    llama: Any, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "evalguard.models.machine.fits_in_memory", lambda size, _: bool(asked.append(size))
    )
    scorer = llama({NORM: "bfloat16"})
    assert asked == [32 * 4]
    scorer.score(next(blocks()))
    assert not scorer.reassign(variant(tiny_llama, {NORM: "float32"}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_weights_that_were_replaced_on_a_gpu_wait_in_this_machines_memory(
    tiny_llama: Path, tmp_path: Path, reachable: None
) -> None:
    policy = ScoringPolicy(device="cuda", threads=1)

    def loaded(values: Values, *, reusable: bool) -> OpenedScorer:
        one = variant(tiny_llama, values)
        scorer = load_scorer(one, policy, cache_dir=tmp_path, reusable=reusable)
        assert isinstance(scorer, OpenedScorer)
        return scorer

    sequence: list[Values] = [
        {"dtype:model.layers.*": "bfloat16"},
        {},
        {"dtype:lm_head": "float64"},
    ]
    scorer = loaded({}, reusable=True)
    own = dict(scorer.lm.model.named_parameters())
    for values in sequence:
        assert scorer.reassign(variant(tiny_llama, values))
        (mine, *answers), (fresh, *others) = told(scorer), told(loaded(values, reusable=False))
        assert isinstance(mine, dict)
        assert isinstance(fresh, dict)
        assert {key for key in mine if mine[key] != fresh[key]} == set()
        assert answers == others
        held = {id(one) for one in scorer.lm.model.parameters()}
        assert all(one.is_cuda == (id(one) in held) for one in own.values())
