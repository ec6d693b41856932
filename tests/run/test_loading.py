"""A variant becomes a scorer with every setting applied, or an error that names the setting."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save_llama

from evalguard.core.scorer import ModelDescription, Request, Scorer, ScoringPolicy
from evalguard.core.settings import BuildRecipe, Setting, Target, Value, Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.errors import SettingError, UsageError
from evalguard.run_token import run_of

POLICY = ScoringPolicy(batch_size=4, device="cpu", threads=1)
REQUEST = Request(
    task="t", doc_id=0, index=0, kind="loglikelihood", arguments=("Mara carried the", " lantern")
)


def variant(folder: Path, targets: Mapping[str, Value] | None = None, **fields: Any) -> Variant:
    settings = tuple(
        Setting(name=target, reference=None, candidate=value, target=Target.parse(target))
        for target, value in (targets or {}).items()
    )
    given: dict[str, Any] = {
        "name": "port",
        "model": "hf",
        "model_args": {"pretrained": str(folder), "dtype": "float32"},
        **fields,
    }
    return Variant(settings=settings, assignment={s.name: s.candidate for s in settings}, **given)


def opened(
    folder: Path, targets: Mapping[str, Value] | None = None, **fields: Any
) -> tuple[Scorer, ModelDescription]:
    one = variant(folder, targets, **fields)
    scorer = load_scorer(one, POLICY, cache_dir=folder.parent / "cache")
    return scorer, scorer.describe()


def score(scorer: Scorer) -> float:
    value = scorer.score([REQUEST])[0].loglikelihood
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("model_args.dtype", "bfloat16"),
        ("model_args.add_bos_token", False),
        ("model_args.max_length", 2),
        ("config.rope_parameters.rope_theta", 500.0),
        ("config.rms_norm_eps", 0.1),
        ("config.hidden_act", "gelu"),
        ("attr:model.layers.*.self_attn.scaling", 0.7),
        ("attr:model.layers.*.input_layernorm.variance_epsilon", 0.2),
        ("attr:model.norm.weight", 0.5),
        ("dtype:model.layers.*.self_attn", "bfloat16"),
    ],
)
def test_a_setting_is_applied_read_back_and_moves_the_score(
    tiny_llama: Path, target: str, value: Value
) -> None:
    plain, _ = opened(tiny_llama)
    scorer, told = opened(tiny_llama, {target: value})
    assert told.effective == {target: value}
    assert score(scorer) != score(plain)


@pytest.mark.parametrize(
    ("targets", "unread"),
    [
        ({"attr:model.layers.*.mlp.intermediate_size": 7}, True),
        ({"attr:model.layers.*.self_attn.attention_dropout": 0.5}, True),  # read in training
        ({"attr:model.layers.*.mlp.down_proj.in_features": 3}, True),
        ({"attr:model.rotary_emb.original_inv_freq": 3.0}, True),
        ({"attr:model.layers.*.self_attn.scaling": 0.7}, False),
        ({"attr:model.layers.0.input_layernorm.variance_epsilon": 0.2}, False),
        ({"attr:model.layers.*.input_layernorm.weight": 0.5}, False),
        ({"attr:model.rotary_emb.inv_freq": 0.5}, False),
        ({"config.rms_norm_eps": 0.1}, False),
    ],
)
def test_a_setting_that_no_module_reads_is_said_to_be_inert(
    tiny_llama: Path, targets: dict[str, Value], unread: bool
) -> None:
    plain, _ = opened(tiny_llama)
    scorer, told = opened(tiny_llama, targets)
    assert (score(scorer) == score(plain)) is unread
    found = [one for one in told.findings if one.kind == "setting_unread"]
    assert [one.values["setting"] for one in found] == [*targets][: int(unread)]


def test_of_several_settings_those_that_are_read_are_not_inert(tiny_llama: Path) -> None:
    targets: dict[str, Value] = {
        "attr:model.layers.*.self_attn.scaling": 0.7,
        "attr:model.layers.*.mlp.hidden_size": 7,
    }
    _, told = opened(tiny_llama, targets)
    (found,) = [one for one in told.findings if one.kind == "setting_unread"]
    assert found.text.startswith(
        "setting 'attr:model.layers.*.mlp.hidden_size' is inert: it sets "
        "model.layers.0.mlp.hidden_size (and of "
    )
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

    assert "scaling" not in vars(LlamaAttention)
    assert "hidden_size" not in vars(LlamaMLP)


def test_gemma2_attention_settings_are_applied(tiny_gemma2: Path) -> None:
    plain, _ = opened(tiny_gemma2)
    targets: dict[str, Value] = {
        "config.attn_logit_softcapping": 1.0,
        "config.query_pre_attn_scalar": 4,
        "attr:model.layers.*.input_layernorm.eps": 0.1,
    }
    scorer, told = opened(tiny_gemma2, targets)
    assert told.effective == targets
    assert score(scorer) != score(plain)


def test_without_settings_the_identity_is_that_of_the_files(tiny_llama: Path) -> None:
    _, first = opened(tiny_llama)
    _, second = opened(tiny_llama)
    assert first.identity is not None
    assert first.identity == second.identity
    assert first.identity["weights"] == second.identity["weights"]


@pytest.mark.parametrize(
    "targets",
    [
        {"config.rms_norm_eps": 0.1},
        {"attr:model.norm.weight": 0.5},
        {"model_args.add_bos_token": False},
        {"model_args.max_length": 20},
    ],
)
def test_every_setting_is_part_of_the_identity(tiny_llama: Path, targets: dict[str, Value]) -> None:
    assert opened(tiny_llama)[1].identity != opened(tiny_llama, targets)[1].identity


def test_weights_are_part_of_the_identity_and_the_path_is_not(
    tiny_llama: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_llama, tmp_path / "copy"))
    assert opened(copy)[1].identity == opened(tiny_llama)[1].identity
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert opened(copy)[1].identity != opened(tiny_llama)[1].identity


def test_a_hook_is_called_and_what_it_made_is_for_one_run(
    tiny_llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hook.py").write_text(
        "print('imported')\n"
        "def halve_weights(model, value):\n"
        "    for p in model.parameters():\n"
        "        p.mul_(0.5)\n"
    )
    targets: dict[str, Value] = {"call:hook.py:halve_weights": "int8"}
    scorer, told = opened(tiny_llama, targets, allow_code=True, code_folder=str(tmp_path))
    assert told.effective == {"call:hook.py:halve_weights": {"called": "int8"}}
    assert score(scorer) != score(opened(tiny_llama)[0])
    assert run_of(told.identity)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "imported" in captured.err


def test_a_hook_is_refused_where_code_is_not_allowed(tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match="not allowed to run"):
        opened(tiny_llama, {"call:hook.py:f": 1})


def test_a_built_model_is_loaded_with_the_settings_it_was_built_from(
    tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy.py").write_text(
        "import shutil\ndef copy(output, source, bits):\n    shutil.copytree(source, output)\n"
    )
    recipe = BuildRecipe(
        call="copy.py:copy",
        output="model",
        inputs={"source": str(tiny_llama), "bits": 8},
        folder=str(tmp_path),
    )
    scorer, told = opened(
        tiny_llama,
        {"build.bits": 4},
        build=recipe,
        allow_code=True,
        model_args={"pretrained": "{build}", "dtype": "float32"},
    )
    assert told.effective == {"build.bits": 4}
    assert score(scorer) == score(opened(tiny_llama)[0])
    assert told.identity is not None


def test_an_env_setting_is_read_from_the_process_that_runs_the_model(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALGUARD_TEST_MODE", "fast")
    assert opened(tiny_llama, {"env.EVALGUARD_TEST_MODE": "fast"})[1].effective == {
        "env.EVALGUARD_TEST_MODE": "fast"
    }
    with pytest.raises(SettingError, match="this process has 'fast', the setting asks for 'slow'"):
        opened(tiny_llama, {"env.EVALGUARD_TEST_MODE": "slow"})
    with pytest.raises(SettingError, match="the setting asks for no such variable"):
        opened(tiny_llama, {"env.EVALGUARD_TEST_MODE": None})


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"config.rope_theta": 1.0}, "did you mean 'rope_parameters.rope_theta'"),
        ({"attr:model.layers.*.self_attn.scal": 1.0}, "did you mean 'scaling'"),
        ({"attr:model.layer.*.self_attn.scaling": 1.0}, "no module is named"),
        ({"dtype:model.layers.*.norm": "bfloat16"}, "no module is named"),
        ({"config.dtype": "bfloat16"}, r"did not take: config\.dtype is 'float32'"),
    ],
)
def test_a_setting_that_cannot_take_is_an_error_never_silent(
    tiny_llama: Path, targets: dict[str, Value], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        opened(tiny_llama, targets)


def test_a_tokenizer_that_cannot_add_bos_is_found_out(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"bos_token": "<s>",', ""))
    with pytest.raises(SettingError, match=r"add_bos_token is '0 BOS tokens .*asked was True"):
        opened(folder, {"model_args.add_bos_token": True})


def test_an_argument_without_a_setting_is_checked_for_bos_too(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"bos_token": "<s>",', ""))
    arguments = {"pretrained": str(folder), "dtype": "float32", "add_bos_token": True}
    with pytest.raises(SettingError, match="0 BOS tokens"):
        opened(folder, model_args=arguments)


def test_edits_need_a_torch_model(tiny_llama: Path) -> None:
    with pytest.raises(SettingError, match="'dummy' has none in this process"):
        opened(tiny_llama, {"attr:model.norm.eps": 1.0}, model="dummy", model_args={})


def test_scores_of_a_model_without_weights_on_disk_are_never_cached(tiny_llama: Path) -> None:
    assert opened(tiny_llama, model="dummy", model_args={})[1].identity is None


def _keep_as_the_hub_does(model: Path, repository: Path, commit: str) -> None:
    """Files are blobs named after their content, and links to them stand in the snapshot."""
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for file in model.iterdir():
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(blob)


@pytest.mark.slow
def test_a_hub_snapshot_in_the_local_cache_is_identified_by_its_commit(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """Read in a fresh process: the hub client reads its cache folder at import."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--owner--tiny"
    _keep_as_the_hub_does(tiny_llama, repository, commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from pathlib import Path\n"
        "from test_loading import opened\n"
        "arguments = {'pretrained': 'owner/tiny', 'dtype': 'float32'}\n"
        f"print(opened(Path({str(tmp_path)!r}), model_args=arguments)[1].identity['weights'])\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr({"pretrained": f"owner/tiny@{commit}"})


def test_the_callers_number_of_threads_is_given_back_after_every_call(tiny_llama: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        scorer, told = opened(tiny_llama)
        assert (told.environment["threads"], torch.get_num_threads()) == (1, 3)
        score(scorer)
        assert torch.get_num_threads() == 3
        with pytest.raises(SettingError):
            opened(tiny_llama, {"attr:model.norm.epss": 1.0})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_modules_made_by_a_hook_are_in_evaluation_mode(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "dropout.py").write_text(
        "import torch\ndef add(model, value):\n    model.model.norm = torch.nn.Sequential("
        "model.model.norm, torch.nn.Dropout(value))\n"
    )
    allowed = {"allow_code": True, "code_folder": str(tmp_path)}
    scorer, _ = opened(tiny_llama, {"call:dropout.py:add": 0.5}, **allowed)
    assert score(scorer) == score(opened(tiny_llama)[0])


def copy_with_other_weights(folder: Path, to: Path) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    changed = {name: tensor.flip(0) * 1.5 for name, tensor in tensors.items()}
    save_file(changed, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_with_all_weights_of_another_checkpoint_a_model_is_that_one(
    tiny_llama: Path, tmp_path: Path
) -> None:
    other = copy_with_other_weights(tiny_llama, tmp_path / "other")
    wanted = score(opened(other)[0])
    scorer, told = opened(tiny_llama, {"weights:**": str(other)})
    assert told.effective == {"weights:**": str(other)}
    assert score(scorer) == wanted
    assert score(opened(tiny_llama, {"weights:**": None})[0]) == score(opened(tiny_llama)[0])
    part = score(opened(tiny_llama, {"weights:model.layers.1.mlp": str(other)})[0])
    assert part not in (wanted, score(opened(tiny_llama)[0]))


def test_weights_are_cast_as_the_model_was_loaded_and_edited_afterwards(
    tiny_llama: Path, tmp_path: Path
) -> None:
    other = copy_with_other_weights(tiny_llama, tmp_path / "other")
    more: dict[str, Value] = {
        "model_args.dtype": "bfloat16",
        "attr:model.norm.weight": 0.5,
        "dtype:model.layers.0.mlp": "float32",
    }
    scorer, _ = opened(tiny_llama, {**more, "weights:**": str(other)})
    assert score(scorer) == score(opened(other, more)[0])


def test_the_files_that_weights_are_taken_from_are_part_of_the_identity(
    tiny_llama: Path, tmp_path: Path
) -> None:
    other = copy_with_other_weights(tiny_llama, tmp_path / "other")
    targets: dict[str, Value] = {"weights:model.norm": str(other)}
    first = opened(tiny_llama, targets)[1].identity
    assert first == opened(tiny_llama, targets)[1].identity
    content = bytearray((other / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (other / "model.safetensors").write_bytes(content)
    assert opened(tiny_llama, targets)[1].identity != first
