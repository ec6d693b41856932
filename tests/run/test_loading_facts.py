"""The digest of what a model is loaded from changes with everything that decides what is loaded."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Setting, Target, Variant, digest_of
from evalguard.engine.loading import known_models as facts_module
from evalguard.engine.loading.known_models import collect_loading_facts, digest_weights
from evalguard.models import checkpoint_files as weights
from evalguard.models import identity
from evalguard.models.identity import describe_surroundings

HERE = {"python": "3.11", "environment": "e"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def variant(folder: Path, **changes: Any) -> Variant:
    arguments = {"pretrained": str(folder), "dtype": "float32", **changes.pop("model_args", {})}
    return Variant(**{"name": "m", "model": "hf", "model_args": arguments, **changes})


def digest(of: Variant, tmp_path: Path, **changes: Any) -> str | None:
    given = {
        "policy": ScoringPolicy(), "cache_dir": tmp_path, "surroundings": HERE, "worker": False
    }  # fmt: skip
    given |= changes
    found = collect_loading_facts(of, given.pop("policy"), **given)
    return None if found is None else digest_of(found)


def test_the_same_inputs_have_the_same_digest_and_a_name_is_none(
    folder: Path, tmp_path: Path
) -> None:
    first = digest(variant(folder), tmp_path)
    assert first
    assert digest(variant(folder, name="other"), tmp_path) == first


def scale(value: float) -> dict[str, Any]:
    target = Target(kind="attr", path="model.layers.*", attribute="scaling")
    setting = Setting(name="scale", reference=1.0, candidate=value, target=target)
    return {"settings": (setting,), "assignment": {"scale": value}}


@pytest.mark.parametrize(
    "changes",
    [
        {"model_args": {"dtype": "bfloat16"}},
        {"model_args": {"revision": "other"}},
        {"allow_pickle": True},
        scale(2.0),
        {**scale(2.0), "assignment": {"scale": 1.0}},
    ],
)
def test_whatever_is_said_of_a_model_counts(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert digest(variant(folder, **changes), tmp_path) != digest(variant(folder), tmp_path)


@pytest.mark.parametrize("name", ["scale", "token", "hub_key", "cookie"])
def test_a_settings_value_counts_whatever_the_setting_is_called(
    folder: Path, tmp_path: Path, name: str
) -> None:
    target = Target(kind="attr", path="model.layers.*", attribute="scaling")
    setting = Setting(name=name, reference=1.0, candidate=2.0, target=target)
    found = {
        digest(variant(folder, settings=(setting,), assignment={name: value}), tmp_path)
        for value in (1.0, 2.0, "token=1", "token=2")
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": ScoringPolicy(token_budget=64)},
        {"policy": ScoringPolicy(seed=1)},
        {"policy": ScoringPolicy(device="cuda")},
        {"surroundings": {**HERE, "python": "3.12"}},
        {"worker": True},
    ],
)
def test_how_and_where_it_is_loaded_counts(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert digest(variant(folder), tmp_path, **changes) != digest(variant(folder), tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_every_byte_of_its_files_counts(folder: Path, tmp_path: Path, file: str) -> None:
    before = digest(variant(folder), tmp_path)
    (folder / file).write_bytes(b"changed")
    assert digest(variant(folder), tmp_path) != before


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "dummy"},
        {"trust_remote_code": True, "model_args": {"tokenizer": "owner/tokenizer"}},
        {"model_args": {"parallelize": True}},
        {"model_args": {"tokenizer": "owner/tokenizer"}},
        {"model_args": {"peft": "owner/adapter"}},
        {"model_args": {"pretrained": "owner/never-downloaded"}},
    ],
)
def test_what_may_be_another_model_tomorrow_has_no_digest(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert digest(variant(folder, **changes), tmp_path) is None


def test_a_hub_models_commit_has_to_be_the_one_that_loading_takes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = variant(folder, model_args={"pretrained": "owner/model"})
    known = {"pretrained": f"owner/model@{'a' * 40}"}
    monkeypatch.setattr(facts_module, "digest_weights", lambda *_, **__: known)
    found = []
    for commit in ("a" * 40, "b" * 40, None):
        monkeypatch.setattr(facts_module, "find_current_commit", lambda *_, now=commit: now)
        found.append(digest(of, tmp_path))
    assert found[0]
    assert found[1:] == [None, None]


def test_online_a_branch_counts_as_far_as_the_hub_confirms_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    class Told:
        commit_hash = "c" * 40

    def refused(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(weights, "hub_commit", lambda *_: "c" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: Told())
    assert weights.find_current_commit("owner/model", "main") == "c" * 40
    Told.commit_hash = "d" * 40
    assert weights.find_current_commit("owner/model", "main") is None
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refused)
    assert weights.find_current_commit("owner/model", "main") is None
    assert weights.find_current_commit("owner/model", "c" * 40) == "c" * 40
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert weights.find_current_commit("owner/model", "main") == "c" * 40


def test_secrets_are_no_part_of_a_digest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = digest(variant(folder, model_args={"token": "hf_one"}), tmp_path)
    assert digest(variant(folder, model_args={"token": "hf_two"}), tmp_path) == plain
    before = describe_surroundings()
    monkeypatch.setenv("HF_TOKEN", "hf_anything")
    assert describe_surroundings() == before


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "TORCH_NEW",
        "HF_X",
        "LD_PRELOAD",
        "USE_HUB_KERNELS",
    ],
)
def test_variables_that_the_libraries_read_count(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = describe_surroundings()
    monkeypatch.setenv(name, "7")
    assert describe_surroundings() != before


def test_other_variables_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe_surroundings()
    monkeypatch.setenv("COLUMNS", "81")
    assert describe_surroundings() == before


def test_an_installed_version_a_driver_and_torchs_switches_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    before = describe_surroundings()
    (tmp_path / "torch-99.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    after = describe_surroundings()
    assert after["installed"] != before["installed"]
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not deterministic)
    try:
        assert describe_surroundings()["torch"] != after["torch"]
    finally:
        torch.use_deterministic_algorithms(deterministic)
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, **how: "580.1" if "nvidia" in path.parts else read(path, **how),
    )
    assert describe_surroundings()["accelerators"] != after["accelerators"]


def test_a_version_counts_however_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe_surroundings()
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9" if name == "torch" else real(name))
    identity.package_versions.cache_clear()
    try:
        assert describe_surroundings()["packages"] != before["packages"]
    finally:
        monkeypatch.undo()
        identity.package_versions.cache_clear()


def test_a_hub_models_files_that_were_edited_by_hand_are_no_longer_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cache, commit = tmp_path / "hub" / "models--owner--model", "c" * 40
    for folder in ("refs", "blobs", f"snapshots/{commit}"):
        (cache / folder).mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    contents = {"config.json": b"{}", "model.safetensors": b"weights"}
    # printf '{}' | git hash-object --stdin; printf weights | sha256sum
    blobs = {
        "config.json": "9e26dfeeb6e641a33dae4961196235bdb965b21b",
        "model.safetensors": hashlib.sha256(b"weights").hexdigest(),
    }
    for name, blob in blobs.items():
        (cache / "blobs" / blob).write_bytes(contents[name])
        (cache / "snapshots" / commit / name).symlink_to(cache / "blobs" / blob)
    arguments = {"pretrained": "owner/model"}
    of = variant(tmp_path, model_args=arguments)
    assert digest_weights(of, arguments) == {"pretrained": f"owner/model@{commit}"}
    both = digest_weights(of, arguments, checkpoints=["owner/model@main"])
    assert both == dict.fromkeys(
        ("pretrained", "weights:owner/model@main"), f"owner/model@{commit}"
    )
    assert digest_weights(of, arguments, checkpoints=["owner/other"]) is None
    before = digest(of, tmp_path)
    assert before is not None
    found = {before}
    for name, text in (("config.json", "[]"), ("model.safetensors", "weighty")):
        (cache / "snapshots" / commit / name).write_text(text)
        found.add(digest(of, tmp_path))
    assert len(found) == 3
    assert None not in found
