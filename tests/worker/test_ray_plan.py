"""Where models run on a cluster: what can be typed, and what is refused before anything runs."""

from __future__ import annotations

import importlib.metadata
import socket

import pytest

from evalguard.core.ray_plan import RayPlan
from evalguard.errors import EvaluationError, UsageError
from evalguard.installation import extra_command
from evalguard.worker.ray_cluster import check_ray, open_cluster


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("ray", RayPlan()),
        ("ray://head:10001", RayPlan(address="head:10001")),
        ("ray://[::1]:10001", RayPlan(address="[::1]:10001")),
        ("ray://auto", RayPlan(address="auto")),
        (
            "ray?actors=4&num_gpus=0.5&num_cpus=2&memory=1000",
            RayPlan(actors=4, num_gpus=0.5, num_cpus=2.0, memory=1000),
        ),
        ("ray://auto?num_gpus=0", RayPlan(address="auto", num_gpus=0.0)),
    ],
)
def test_a_place_is_read(text: str, plan: RayPlan) -> None:
    assert RayPlan.parse(text) == plan


@pytest.mark.parametrize(
    "text",
    [
        "", "dask", "ray:", "ray://", "ray://head", "ray://head:0", "ray://:10001", "ray://head:x",
        "ray?actors=0", "ray?actors=1.5", "ray?actors=two", "ray?num_gpus=-1", "ray?num_gpus=nan",
        "ray?gpus=1", "ray?actors=1&actors=2", "ray?num_cpus=inf", "ray?memory=8GB",
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="--execution") as refused:
        RayPlan.parse(text)
    assert "ray://HOST:PORT" in refused.value.hint


@pytest.mark.parametrize("text", ["dask", "ray://nowhere"])
def test_the_options_of_a_comparison_are_refused_too(text: str) -> None:
    from evalguard.config.options import CompareOptions

    with pytest.raises(UsageError, match="this is not a place where models can run"):
        CompareOptions(execution=text)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UsageError, match="Ray is not installed here") as refused:
        check_ray()
    assert refused.value.hint == extra_command("ray")


@pytest.mark.parametrize(("version", "fits"), [("1.13.0", False), ("2.29.1", False), ("3.0", True)])
def test_an_old_ray_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if fits:
        check_ray()
        return
    with pytest.raises(UsageError, match=f"Ray {version} is installed, 2.30 or later is needed"):
        check_ray()


def test_an_address_where_nobody_listens_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.60.0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with pytest.raises(EvaluationError, match=f"no Ray answers at 127.0.0.1:{port}") as error:
            open_cluster(RayPlan(address=f"127.0.0.1:{port}"))
    assert "HOST:10001" in error.value.hint
