"""Where models run: here, or on the machines of a cluster, and with how much of them."""

from __future__ import annotations

from evalguard.config.guard import RunOptions
from evalguard.engine.options import CompareOptions
from evalguard.store.cache_folder import cache_size_limit
from evalguard.worker.ray_cluster import RayPlan


def choose_execution(run: RunOptions, options: CompareOptions) -> str:
    """Settle where models run; of the guard file's amounts those count that nobody typed.

    Raises:
        UsageError: it is no place, or memory no size.
    """
    text = options.execution or run.execution or ""
    if text in ("", "here"):
        return ""
    if "?" not in text:
        memory = cache_size_limit(run.memory_each, environ={})
        amounts = {
            "actors": run.actors, "num_gpus": run.num_gpus, "num_cpus": run.num_cpus,
            "memory": memory,
        }  # fmt: skip
        given = "&".join(f"{name}={value}" for name, value in amounts.items() if value is not None)
        text = f"{text}?{given}" if given else text
    RayPlan.parse(text)
    return text
