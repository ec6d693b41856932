"""Two sets of stored tensors: what differs, what it looks like, and what is missing."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gguf_writer import save_gguf, save_quantised_gguf
from safetensors.torch import load_file, save_file
from tiny_models import save_llama

from evalguard.errors import EvaluationError
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_page import answer_text
from evalguard.tensors.tensors_report import TensorDelta, TensorsReport

UP, GATE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
QUERY, OUTPUT = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "qo")
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model") / "hf", tied=False)


@pytest.fixture
def state(model: Path) -> State:
    return load_file(model / "model.safetensors")


def compare(base: Path, candidate: Path, **options: Any) -> TensorsReport:
    return compare_tensors(str(base), str(candidate), TensorOptions(**options))


def compare_states(folder: Path, base: State, candidate: State, **options: Any) -> TensorsReport:
    save_file(base, folder / "base.safetensors")
    save_file(candidate, folder / "cand.safetensors")
    return compare(folder / "base.safetensors", folder / "cand.safetensors", **options)


def find(report: TensorsReport, name: str) -> TensorDelta:
    return next(delta for delta in report.deltas if delta.name == name)


def likeness(report: TensorsReport, name: str) -> str:
    found = find(report, name).likeness
    return "" if found is None else found.words


def test_a_model_is_identical_to_itself(model: Path) -> None:
    report = compare(model, model)
    assert {delta.state for delta in report.deltas} == {"identical"}
    assert (report.exit_code, report.missing, report.caveats) == (0, (), ())


def test_a_cast_model_is_within_the_tolerance_of_its_dtype_and_named(
    tmp_path: Path, state: State
) -> None:
    report = compare_states(tmp_path, state, {k: v.bfloat16() for k, v in state.items()})
    assert report.exit_code == 0
    assert likeness(report, UP) == "bf16 (bfloat16)"
    assert find(report, UP).state == "within"
    assert find(report, "model.norm.weight").state == "equal", "ones are exact in bfloat16"


@pytest.mark.parametrize("turned", [False, True])
def test_a_gguf_file_needs_no_map(tmp_path: Path, model: Path, turned: bool) -> None:
    pytest.importorskip("gguf")
    sides = [model, save_gguf(model, tmp_path / "m.gguf")]
    report = compare(*(reversed(sides) if turned else sides))
    assert report.exit_code == 0
    assert not report.missing
    assert {delta.state for delta in report.deltas} == {"identical", "equal"}
    permuted = [delta for delta in report.deltas if "heads permuted" in delta.layout]
    assert len(permuted) == 4, "q and k of two layers"


def test_faults_are_named_each_at_its_own_tensor(tmp_path: Path, state: State) -> None:
    faulty = {name: tensor.clone() for name, tensor in state.items()}
    faulty[QUERY] = faulty[QUERY].T.contiguous()
    faulty[UP], faulty[GATE] = state[GATE].clone(), state[UP].clone()
    faulty["lm_head.weight"] *= 1.02
    faulty["model.embed_tokens.weight"] = torch.roll(state["model.embed_tokens.weight"], 1, 0)
    down = "model.layers.0.mlp.down_proj.weight"
    faulty[down] = faulty[down].T.contiguous()
    del faulty["model.norm.weight"]
    report = compare_states(tmp_path, state, faulty)
    assert report.exit_code == 1
    assert report.missing == ("model.norm.weight",)
    assert likeness(report, QUERY) == "transposed"
    assert likeness(report, UP) == f"swapped (it is {GATE})"
    assert likeness(report, GATE) == f"swapped (it is {UP})"
    assert likeness(report, "lm_head.weight") == "scaled (by 1.02)"
    assert likeness(report, "model.embed_tokens.weight") == "shifted (by one along axis 0)"
    assert (find(report, down).state, likeness(report, down)) == ("shape", "transposed")
    others = [d for d in report.deltas if d.state not in ("beyond", "shape")]
    assert {delta.state for delta in others} == {"identical"}


def test_what_was_done_to_a_vector_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = {f"{n}.weight": 1 + rng.normal(0, 0.05 * n, 48).astype(np.float32) for n in range(1, 6)}
    base["6.bias"] = rng.normal(size=48).astype(np.float32)
    made = {
        "1.weight": base["1.weight"][::-1], "2.weight": np.zeros(48, np.float32),
        "3.weight": -base["3.weight"], "4.weight": base["4.weight"] + 1,
        "5.weight": 1 + rng.normal(0, 0.05, 48).astype(np.float32),
        "6.bias": rng.permutation(base["6.bias"]),
    }  # fmt: skip
    sides = [
        {name: torch.from_numpy(np.array(one)) for name, one in side.items()}
        for side in (base, made)
    ]
    report = compare_states(tmp_path, *sides)
    seen = {one.name: one.likeness.name if one.likeness else "" for one in report.deltas}
    assert list(seen.values()) == [
        "rows permuted", "zeroed", "scaled", "plus a constant", "", "rows permuted",
    ]  # fmt: skip


def test_one_quantised_matrix_stands_out_of_a_cast_model(tmp_path: Path, state: State) -> None:
    from evalguard.core.precision_vote import round_integer

    cast = {name: tensor.bfloat16() for name, tensor in state.items()}
    rounded = round_integer(state[OUTPUT].numpy(), 4, group=32)
    cast[OUTPUT] = torch.from_numpy(rounded).bfloat16()
    report = compare_states(tmp_path, state, cast)
    beyond = [delta.name for delta in report.deltas if delta.state == "beyond"]
    assert beyond == [OUTPUT]
    assert likeness(report, OUTPUT).startswith("int4 (")


def test_a_name_map_renames_transposes_and_splits(tmp_path: Path) -> None:
    base = {f"q.{n}": torch.randn(4, 6) for n in range(2)}
    base |= {f"k.{n}": torch.randn(2, 6) for n in range(2)}
    fused = {f"h{n}": torch.cat([base[f"q.{n}"], base[f"k.{n}"]]).T.contiguous() for n in range(2)}
    split = [{"axis": 1, "sizes": [4, 2], "index": index} for index in range(2)]
    rules = [
        {"base": f"{name}.*", "cand": "h*", "split": split[index], "transpose": [1, 0]}
        for index, name in enumerate("qk")
    ]
    path = tmp_path / "map.yaml"
    path.write_text(json.dumps({"map": rules}))
    report = compare_states(tmp_path, base, fused, name_map=path)
    assert [delta.state for delta in report.deltas] == ["equal"] * 4
    assert report.exit_code == 0


def test_experts_of_a_stack_are_compared_one_by_one(tmp_path: Path) -> None:
    experts = {f"experts.{n}.up": torch.randn(3, 4) for n in range(5)}
    stack = {"exps": torch.stack([*experts.values()])}
    path = tmp_path / "map.yaml"
    path.write_text('map: [{base: "experts.*.up", cand: "exps", take: {index: "$1"}}]')
    report = compare_states(tmp_path, experts, stack, name_map=path)
    assert [delta.state for delta in report.deltas] == ["identical"] * 5
    more = {**experts, "experts.5.up": torch.randn(3, 4)}
    beyond = compare_states(tmp_path, more, stack, name_map=path)
    assert find(beyond, "experts.5.up").fault == "there is no index 5 in [5, 3, 4]"


def test_a_layout_that_does_not_fit_is_said_at_its_tensor(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text('map: [{base: "x", cand: "x", permute: {heads: 5, order: halves}}]')
    report = compare_states(
        tmp_path, {"x": torch.ones(8, 2)}, {"x": torch.ones(8, 2)}, name_map=path
    )
    assert report.exit_code == 1
    assert "8 elements are not 5 heads of one size" in report.deltas[0].fault


def test_tied_embeddings_that_one_side_stores_twice_are_not_missing(
    tmp_path: Path, state: State
) -> None:
    del state["lm_head.weight"]
    twice = {**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}
    report = compare_states(tmp_path, state, twice)
    assert report.exit_code == 0
    assert report.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert [group.names for group in report.duplicates] == [
        ("lm_head.weight", "model.embed_tokens.weight")
    ]
    untied = {**state, "lm_head.weight": torch.randn_like(state["model.embed_tokens.weight"])}
    beside = compare_states(tmp_path, state, untied)
    assert (beside.exit_code, beside.missing) == (1, ())
    assert likeness(beside, "lm_head.weight").startswith("stale tied head")


def test_a_head_that_the_base_does_not_tie_is_no_stale_one(tmp_path: Path, state: State) -> None:
    """Though the candidate's is the embedding, or another in part."""
    for head in (state["model.embed_tokens.weight"].clone(), 2 * state["lm_head.weight"]):
        report = compare_states(tmp_path, state, {**state, "lm_head.weight": head})
        assert report.exit_code == 1
        assert "stale" not in likeness(report, "lm_head.weight")


def test_tensors_of_one_value_are_no_duplicates(tmp_path: Path) -> None:
    norms = {name: torch.ones(600) for name in "ab"}
    assert compare_states(tmp_path, norms, norms).duplicates == ()
    late = {name: torch.cat([torch.ones(600), torch.arange(3.0)]) for name in "ab"}
    assert len(compare_states(tmp_path, late, late).duplicates) == 2, "one group on each side"


def test_nan_and_inf_are_counted_and_never_equal(tmp_path: Path, state: State) -> None:
    broken = {name: tensor.clone() for name, tensor in state.items()}
    broken[UP][1, 2] = torch.nan
    broken[UP][3, 4] = torch.inf
    report = compare_states(tmp_path, state, broken)
    delta = find(report, UP)
    assert (delta.state, delta.mismatched) == ("beyond", 2)
    assert (delta.candidate.nans, delta.candidate.infs) == (1, 1)
    assert delta.mismatched_absolute is not None
    assert delta.mismatched_absolute.index == (3, 4)
    assert any("1 NaN and 1 infinite" in text for text in report.caveats)
    itself = compare_states(tmp_path, broken, broken)
    assert find(itself, UP).state == "beyond"


def test_scales_and_zero_points_are_told_by_their_names(tmp_path: Path) -> None:
    base = {
        "a.weight": torch.ones(8),
        "a.input_scale": torch.ones(3),
        "c.zero_point": torch.ones(3, dtype=torch.int32),
    }
    report = compare_states(tmp_path, base, base)
    roles = {delta.name: delta.role for delta in report.deltas}
    assert roles == {"a.weight": "tensor", "a.input_scale": "scale", "c.zero_point": "zero point"}


def test_two_files_that_pack_alike_hold_equal_numbers_or_differ(tmp_path: Path) -> None:
    """Whatever the format could do: one code that is one off is another file."""
    generator = torch.Generator().manual_seed(0)
    base = {
        "a.weight": torch.randint(-127, 128, (8, 64), generator=generator).to(torch.int8),
        "a.weight_scale": torch.full((8,), 0.5),
        "a.weight_zero_point": torch.arange(8, dtype=torch.int32),
    }
    same = compare_states(tmp_path, base, base)
    assert (same.exit_code, [delta.state for delta in same.deltas]) == (0, ["identical"])
    for part, place, change in (
        ("a.weight", (5, 7), 1), ("a.weight_scale", 3, 0.5), ("a.weight_zero_point", 1, 3),
    ):  # fmt: skip
        other = {name: tensor.clone() for name, tensor in base.items()}
        other[part][place] += change
        report = compare_states(tmp_path, base, other)
        assert (report.exit_code, report.deltas[0].name) == (1, "a.weight")
        found = report.deltas[0].mismatched_absolute
        assert found is not None
        assert found.index[0] == (place[0] if isinstance(place, tuple) else place)


@pytest.mark.parametrize("shape", [(), (1,), (48,), (48, 1), (48, 2), (3, 2)])
def test_stored_integers_are_compared_with_their_scale(
    tmp_path: Path, state: State, shape: tuple[int, ...]
) -> None:
    """One scale a tensor, a row, a group of columns, a block; as compressed-tensors stores them."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, tuple(state[UP].shape), generator=generator).to(torch.int8)
    scale = torch.rand(shape, generator=generator) * 0.01 + 0.001
    grid = scale.reshape(tuple(scale.shape) + (1,) * (2 - scale.ndim)) if scale.ndim else scale
    spread = grid
    for axis in range(grid.ndim):
        spread = spread.repeat_interleave(codes.shape[axis] // spread.shape[axis], axis)
    base = {**state, UP: codes.float() * spread}
    quantised = {**state, UP: codes, UP + "_scale": scale}
    report = compare_states(tmp_path, base, quantised, rtol=1e-6, atol=1e-9)
    assert (report.exit_code, report.missing) == (0, ())
    assert find(report, UP).layout == "int8 with a scale"


def test_zero_points_and_bitsandbytes_scales_are_taken_in(tmp_path: Path) -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8).reshape(4, 4)
    zero, scale = torch.tensor([1, 2, 3, 4], dtype=torch.int8), torch.tensor([0.5, 1.0, 2.0, 4.0])
    base = {"a.weight": (codes.float() - zero.float()[:, None]) * scale[:, None]}
    stored = {"a.weight": codes, "a.weight_scale": scale, "a.weight_zero_point": zero}
    assert compare_states(tmp_path, base, stored).exit_code == 0
    base = {"a.weight": codes.float() * scale[:, None] / 127}
    assert compare_states(tmp_path, base, {"a.weight": codes, "a.SCB": scale}).exit_code == 0


def test_an_int8_checkpoint_is_within_what_its_scale_keeps(tmp_path: Path, state: State) -> None:
    scale = state[UP].abs().amax(dim=1, keepdim=True) / 127
    codes = (state[UP] / scale).round().to(torch.int8)
    report = compare_states(tmp_path, state, {**state, UP: codes, UP + "_scale": scale})
    assert report.exit_code == 0
    assert likeness(report, UP) == "int8 (per row)"
    wrong = {**state, UP: codes, UP + "_scale": scale.flip(0)}
    assert compare_states(tmp_path, state, wrong).exit_code == 1


def test_a_scale_that_does_not_fit_is_said(tmp_path: Path) -> None:
    codes = torch.ones(4, 6, dtype=torch.int8)
    stored = {"a.weight": codes, "a.weight_scale": torch.ones(5)}
    report = compare_states(tmp_path, {"a.weight": torch.ones(4, 6)}, stored)
    assert report.exit_code == 3
    assert "a scale of [5] does not fit [4, 6]" in report.deltas[0].fault


def test_models_without_a_common_name_are_an_error_that_shows_both(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no tensor name in common") as caught:
        compare_states(
            tmp_path,
            {"h.0.attn.weight": torch.ones(2), "h.0.x": torch.ones(2)},
            {"layers.0.q": torch.ones(2), "layers.0.k": torch.ones(2)},
        )
    assert "h.0." in str(caught.value)
    assert "--map" in caught.value.hint


def test_two_files_of_one_tensor_are_about_that_tensor(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        np.save(tmp_path / f"{name}.npy", np.arange(4.0))
    report = compare(tmp_path / "ours.npy", tmp_path / "theirs.npy")
    assert [(d.name, d.candidate_name, d.state) for d in report.deltas] == [
        ("ours", "theirs", "identical")
    ]


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_two_files_of_one_tensor_each_whose_names_differ_are_not_compared(
    tmp_path: Path, suffix: str
) -> None:
    paths = [tmp_path / f"{name}.{suffix}" for name in ("ours", "theirs")]
    for path, name in zip(paths, ("lm_head.weight", "embed.weight"), strict=True):
        tensor = torch.arange(4.0)
        if suffix == "npz":
            np.savez(path, **{name: tensor.numpy()})
        elif suffix == "pt":
            torch.save({name: tensor}, path)
        else:
            save_file({name: tensor}, path)
    with pytest.raises(EvaluationError, match="so nothing was compared") as caught:
        compare(*paths)
    assert "lm_head.weight" in str(caught.value)
    assert "embed.weight" in str(caught.value)


def test_a_cut_file_loses_none_of_what_it_still_holds(tmp_path: Path, state: State) -> None:
    changed = {**state, UP: state[UP] * 2}
    save_file(state, tmp_path / "base.safetensors")
    save_file(changed, tmp_path / "cand.safetensors")
    data = (tmp_path / "cand.safetensors").read_bytes()
    (tmp_path / "cand.safetensors").write_bytes(data[:-50])
    report = compare(tmp_path / "base.safetensors", tmp_path / "cand.safetensors")
    assert report.exit_code == 3
    assert report.count("unreadable") == 1
    assert likeness(report, UP) == "scaled (by 2)"


def test_a_disk_that_fails_in_the_middle_is_said_at_its_tensor(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.tensor_files.stored_tensor import OpenedFile

    read = OpenedFile.read

    def fail_late(self: OpenedFile, start: int, stop: int) -> Any:
        if self.path.name.startswith("cand") and start > self.size // 2:
            raise EvaluationError(f"{self.path} cannot be read: Input/output error")
        return read(self, start, stop)

    monkeypatch.setattr(OpenedFile, "read", fail_late)
    report = compare_states(tmp_path, state, state)
    assert report.exit_code == 3
    assert 0 < report.count("unreadable") < len(report.deltas)
    assert report.count("identical") > 0


def test_other_architectures_are_a_caveat(tmp_path: Path, state: State) -> None:
    for side, kind in (("a", "LlamaForCausalLM"), ("b", "MistralForCausalLM")):
        (tmp_path / side).mkdir()
        save_file(state, tmp_path / side / "model.safetensors")
        (tmp_path / side / "config.json").write_text(json.dumps({"architectures": [kind]}))
    report = compare(tmp_path / "a", tmp_path / "b")
    assert report.caveats == ("the base is a LlamaForCausalLM, the candidate a MistralForCausalLM",)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_the_figures_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """More elements than a process is given at a time, so that sums of several are merged."""
    generator = torch.Generator().manual_seed(0)
    base = {"x": torch.randn(2500, 1000, generator=generator), "y": torch.ones(3)}
    candidate = {
        "x": base["x"] + 1e-3 * torch.randn(2500, 1000, generator=generator),
        "y": base["y"],
    }
    reports = [
        compare_states(tmp_path, base, candidate, processes=processes).deltas
        for processes in (1, 3)
    ]
    assert reports[0] == reports[1]
    difference = (candidate["x"] - base["x"]).abs()
    found = reports[0][0].greatest_absolute
    assert found is not None
    assert found.index == tuple(np.unravel_index(int(difference.argmax()), (2500, 1000)))
    assert reports[0][0].elements == 2_500_000


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_process_that_is_killed_is_an_error_and_no_answer(tmp_path: Path) -> None:
    base = {f"x{n}": torch.ones(10) for n in range(100)}

    def kill(_done: int, _all: int) -> None:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # killed by the call before
                child.kill()

    with pytest.raises(EvaluationError, match="process that compared tensors was killed"):
        compare_states(tmp_path, base, base, processes=2, progress=kill)


def test_progress_ends_with_all_elements(tmp_path: Path, state: State) -> None:
    seen: list[tuple[int, int]] = []
    compare_states(tmp_path, state, state, progress=lambda done, total: seen.append((done, total)))
    total = sum(tensor.numel() for tensor in state.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


@pytest.mark.parametrize(("delta", "share"), [(2e-4, 0.170), (5e-4, 0.0710), (1e-3, 0.036)])
def test_the_sign_mask_of_one_task_vector_is_false_where_bfloat16_kept_the_base(
    tmp_path: Path, delta: float, share: float
) -> None:
    """mergekit #231: 7.10% of a bfloat16 checkpoint's mask is false (weights of std 0.02)."""
    generator = torch.Generator().manual_seed(0)
    base = {"x": torch.randn(1000, 1000, generator=generator) * 0.02}
    tuned = {"x": base["x"] + delta * torch.randn(1000, 1000, generator=generator)}
    low = [{"x": side["x"].bfloat16()} for side in (base, tuned)]
    report = compare_states(tmp_path, *low, invariants=("sign-consensus",))
    assert report.exit_code == 1
    assert report.invariants[0].share == pytest.approx(share, rel=0.03)
    sign = (low[1]["x"] - low[0]["x"]).sign()
    majority = ((low[1]["x"] - low[0]["x"]) >= 0).to(sign.dtype) * 2 - 1
    assert report.invariants[0].violations == int((sign != majority).sum()), "mergekit's own mask"
    whole = compare_states(tmp_path, base, tuned, invariants=("sign-consensus",))
    assert whole.invariants[0].share < 1e-5


def test_rows_that_were_never_trained_are_no_deltas_that_rounding_lost(tmp_path: Path) -> None:
    """89 of 100 tokens that no text had, and a norm that was frozen."""
    generator = torch.Generator().manual_seed(0)
    base = {"embed": torch.randn(1000, 64, generator=generator) * 0.02, "norm": torch.ones(64)}
    tuned = {**base, "embed": base["embed"].clone()}
    tuned["embed"][890:] += 5e-4 * torch.randn(110, 64, generator=generator)
    report = compare_states(tmp_path, base, tuned, invariants=("sign-consensus",))
    (found,) = report.invariants
    assert (report.exit_code, found.violations) == (0, 0)
    assert (found.elements, found.untrained) == (110 * 64, 890 * 64 + 64)
    low = [{name: one.bfloat16() for name, one in side.items()} for side in (base, tuned)]
    report = compare_states(tmp_path, *low, invariants=("sign-consensus",))
    (found,) = report.invariants
    assert (report.exit_code, found.untrained) == (1, 890 * 64 + 64)
    assert found.share == pytest.approx(0.071, rel=0.15), "as of a matrix that was trained whole"
    assert "more are in rows that were never trained" in answer_text(report)


def test_rows_that_rounding_leaves_whole_are_not_called_untrained(tmp_path: Path) -> None:
    """Deltas so small that of 64 elements one is changed, or none."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1000, 64, generator=generator) * 0.02
    tuned = base + 1e-6 * torch.randn(1000, 64, generator=generator)
    low = [{"x": side.bfloat16()} for side in (base, tuned)]
    unchanged = (low[0]["x"] == low[1]["x"]).all(1).sum()
    assert 0 < unchanged < 1000
    (found,) = compare_states(tmp_path, *low, invariants=("sign-consensus",)).invariants
    assert found.untrained == 0
    (nothing,) = compare_states(tmp_path, low[0], low[0], invariants=("sign-consensus",)).invariants
    assert nothing.share == 1.0, "no task vector at all"


def test_masks_and_finite_weights_are_invariants_too(tmp_path: Path) -> None:
    base = {"mask": torch.ones(10, dtype=torch.bool), "w": torch.ones(4)}
    holds = compare_states(tmp_path, base, base, invariants=("mask-all-true", "finite"))
    assert holds.exit_code == 0
    broken = {"mask": base["mask"].clone(), "w": torch.tensor([1.0, torch.nan, 1.0, 1.0])}
    broken["mask"][3] = False
    report = compare_states(tmp_path, base, broken, invariants=("mask-all-true", "finite"))
    assert report.exit_code == 1
    counts = [(one.name, one.violations, one.elements) for one in report.invariants]
    assert counts == [("mask-all-true", 1, 10), ("finite", 1, 14)]
    assert compare_states(tmp_path, base, broken, invariants=()).exit_code == 1


def test_tolerances_can_be_given(tmp_path: Path, state: State) -> None:
    near = {name: tensor + 1e-4 for name, tensor in state.items()}
    assert compare_states(tmp_path, state, near).exit_code == 1
    assert compare_states(tmp_path, state, near, atol=2e-4).exit_code == 0
    wide = compare_states(tmp_path, state, near, platform="rocm", operation="matmul")
    assert wide.exit_code == 0
    assert "TF32" in wide.deltas[0].tolerance.reason


@pytest.mark.parametrize(
    ("kind", "looks"),
    # its rows have 32 elements
    [("Q8_0", "int8 (per row)"), ("Q4_0", "int4 (q4_0)"), ("Q5_0", "int5 (q5_0)")],
)
def test_a_quantised_gguf_is_within_what_its_type_keeps_and_named(
    tmp_path: Path, model: Path, kind: str, looks: str
) -> None:
    report = compare(model, save_quantised_gguf(model, kind, tmp_path / "q.gguf"))
    assert report.exit_code == 0
    assert likeness(report, UP) == looks
    assert likeness(report, QUERY) == looks, "its heads put back in order first"
    assert find(report, UP).candidate.dtype == kind.lower()
    assert find(report, UP).tolerance.snr is not None


def test_a_wrong_tensor_in_a_quantised_gguf_is_beyond_what_its_type_keeps(
    tmp_path: Path, model: Path, state: State
) -> None:
    other = {**state, UP: state[GATE].clone(), GATE: state[UP].clone()}
    (tmp_path / "other").mkdir()
    save_file(other, tmp_path / "other" / "model.safetensors")
    report = compare(tmp_path / "other", save_quantised_gguf(model, "Q8_0", tmp_path / "q.gguf"))
    assert report.exit_code == 1
    assert [delta.name for delta in report.deltas if delta.state == "beyond"] == sorted([GATE, UP])
    assert likeness(report, UP) == f"swapped (it is {GATE})"


@pytest.mark.parametrize(
    ("order", "name"),
    [
        ([3, 2, 1, 0, 7, 6, 5, 4], "heads permuted"),
        ([1, 0, 2, 3, 4, 5, 7, 6], "heads permuted"),
        ([2, 3, 4, 5, 6, 7, 0, 1], "heads permuted"),
        ([5, 1, 2, 3, 4, 0, 6, 7], "heads permuted"),
        (torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist(), "rows permuted"),
    ],
)
def test_rows_of_many_sizes_that_all_moved_are_an_order_and_no_duplicates(
    order: list[int], name: str, tmp_path: Path
) -> None:
    """Small rows in the place of large ones stand out, as trained weights have them."""
    draw = torch.Generator().manual_seed(7)
    sizes = 10.0 ** (1.5 * torch.rand(64, 1, generator=draw) - 1.2)
    rows = sizes * torch.randn(64, 64, generator=draw)
    rows[20:24] = 1.02 * rows[40:44]  # and some are nearly alike
    moved = rows.view(len(order), -1, 64)[order].reshape(64, 64)
    report = compare_states(tmp_path, {QUERY: rows}, {QUERY: moved})
    assert likeness(report, QUERY).startswith(name)


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_small_rows_of_another_tensor_are_not_called_damaged(seed: int, tmp_path: Path) -> None:
    """All rows are off by more than their size, and most of all the small ones."""
    draw = torch.Generator().manual_seed(seed)

    def make() -> torch.Tensor:
        sizes = 10.0 ** (1.5 * torch.rand(96, 1, generator=draw) - 1.2)
        return sizes * torch.randn(96, 64, generator=draw)

    base: State = {UP: make(), GATE: make(), QUERY: make()}
    candidate = {UP: base[GATE], GATE: base[UP], QUERY: make()}
    report = compare_states(tmp_path, base, candidate)
    assert likeness(report, UP) == f"swapped (it is {GATE})"
    assert likeness(report, GATE) == f"swapped (it is {UP})"
    assert likeness(report, QUERY) == ""


def test_buffers_in_which_nothing_was_trained_may_be_on_one_side_alone(
    tmp_path: Path, state: State
) -> None:
    """Causal masks of GPT-2 and GPT-NeoX, positions and rotary frequencies."""
    stored = {
        "h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
        "embeddings.position_ids": torch.arange(8)[None],
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    for sides in (({**state, **stored}, state), (state, {**state, **stored})):
        report = compare_states(tmp_path, *sides)
        assert (report.exit_code, report.missing) == (0, ())
        assert {*stored} <= {*report.ignored}
        assert any(one.startswith("4 buffers of one side alone") for one in report.caveats)


def test_a_bias_that_was_trained_is_missed(tmp_path: Path, state: State) -> None:
    report = compare_states(tmp_path, {**state, "h.0.attn.bias": torch.ones(8)}, state)
    assert (report.exit_code, report.base_only) == (1, ("h.0.attn.bias",))


def test_buffers_that_both_sides_have_are_compared(tmp_path: Path, state: State) -> None:
    ours, theirs = ({**state, "rotary_emb.inv_freq": torch.full((4,), size)} for size in (1.0, 2.0))
    assert compare_states(tmp_path, ours, theirs).exit_code == 1


def test_a_tensor_whose_name_a_map_gave_to_another_is_still_missed(
    tmp_path: Path, state: State
) -> None:
    """The base's "a" is the candidate's "b", which has an "a" besides."""
    ones, file = torch.ones(3), tmp_path / "map.yaml"
    file.write_text("map: [{base: a, cand: b}]\n")
    save_file({**state, "a": ones}, tmp_path / "one.safetensors")
    save_file({**state, "b": ones.clone(), "a": 2 * ones}, tmp_path / "other.safetensors")
    report = compare(tmp_path / "one.safetensors", tmp_path / "other.safetensors", name_map=file)
    assert (report.exit_code, report.candidate_only) == (1, ("a",))
