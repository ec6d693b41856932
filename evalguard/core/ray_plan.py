"""RayPlan: where workers of a Ray cluster run, as ``--execution`` says it; Ray is not needed.

Which of them gets which block is decided in ``engine/slots.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evalguard.errors import UsageError

_FORM = "ray, ray://HOST:PORT or ray://auto, and after a question mark actors=4&num_gpus=1"
_AMOUNTS = ("actors", "num_gpus", "num_cpus", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPlan:
    """Where workers run and what each may take there.

    Attributes:
        address: HOST:PORT of a cluster's client server, "auto" for the cluster that this machine
            is part of; "": a local one is started.
        actors: how many; None: one for every ``num_gpus`` of the cluster, or, where it has no
            GPU, one for every machine.
        num_gpus, num_cpus: of each actor; None: one GPU where there are any, and one CPU.
        memory: bytes that Ray keeps free for each; None: Ray does not look at memory.
    """

    address: str = ""
    actors: int | None = None
    num_gpus: float | None = None
    num_cpus: float | None = None
    memory: int | None = None

    @property
    def where(self) -> str:
        """The cluster, as messages say where it is."""
        return f"at {self.address}" if self.address else "on this machine"

    @classmethod
    def parse(cls, text: str) -> RayPlan:
        """Read ``ray[://ADDRESS][?actors=N&num_gpus=X&num_cpus=X&memory=BYTES]``.

        Raises:
            UsageError: it is not of this form.
        """
        target, _, amounts = text.partition("?")
        name, separator, address = target.partition("://")
        if name != "ray" or (separator and not _is_address(address)):
            raise UsageError(
                f"--execution {text}: this is not a place where models can run", hint=_FORM
            )
        given: dict[str, Any] = {}
        for amount in filter(None, amounts.split("&")):
            key, _, value = amount.partition("=")
            if key not in _AMOUNTS or key in given or not _is_amount(value, key):
                raise UsageError(f"--execution {text}: '{amount}' is not understood", hint=_FORM)
            given[key] = int(value) if key in ("actors", "memory") else float(value)
        return cls(address=address, **given)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return text == "auto" or (bool(host) and port.isdecimal() and 0 < int(port) < 65536)


def _is_amount(text: str, key: str) -> bool:
    whole = key in ("actors", "memory")
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return False
    least = 1 if whole else 0
    return least <= value < 2**62
