"""Works of a few documents each, of models that are only names."""

from __future__ import annotations

from evalguard.core.scorer import Request
from evalguard.core.settings import Variant
from evalguard.engine.block_store import Unit
from evalguard.engine.slots import Work
from evalguard.engine.sources import ModelSource
from evalguard.harness.request_blocks import RequestBlock


def source(name: str) -> ModelSource:
    variant = Variant(name=name, model="fake", model_args={"name": name})
    return ModelSource(name=name, variant=variant)


def block(number: int) -> RequestBlock:
    request = Request(
        task="t", doc_id=number, index=0, kind="loglikelihood", arguments=("a", f"{number}")
    )
    return RequestBlock(index=number, requests=(request,), digest=f"b{number}", doc_ids=(number,))


def work(name: str, blocks: int = 2) -> Work:
    return Work(
        source=source(name), units=tuple(Unit(block=block(number)) for number in range(blocks))
    )
