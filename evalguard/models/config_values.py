"""Which values a field of a Hugging Face config can have, where building a model does not tell."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.errors import UsageError, nearest

if TYPE_CHECKING:
    from evalguard.core.settings import Value

_COUNTS = (
    r"(encoder_|decoder_|num_)?(hidden_|attention_|key_value_)?(layers|heads)|n_(layer|head)s?"
    r"|(num_|n_)(local_|routed_)?experts(_per_tok)?"
    r"|((moe_)?(hidden|intermediate|vocab)|state)_size|n_(embd|inner|positions|ctx)|d_(model|ff|kv)"
    r"|(\w+_)?head_dim|max_position_embeddings|max_sequence_length|sliding_window"
)
# The last part of a field's name -> what may stand there, where a number does. Names as models of
# transformers have them; an epsilon of 0 is one that a port has left out.
_NUMBERS: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    (r"(\w+_)?(eps|epsilon)", "a number from 0 on", lambda number: number >= 0),
    (
        r"(\w+_)?(dropout|p?drop|layerdrop)(_rate|_prob|_path_rate)?|partial_rotary_factor",
        "a number from 0 to 1",
        lambda number: 0 <= number <= 1,
    ),
    (
        r"(\w+_)?(theta|factor|softcap(ping)?|pre_attn_scalar|rotary_(emb_)?base)",
        "a number above 0",
        lambda number: number > 0,
    ),
    (_COUNTS, "a whole number from 1 on", lambda number: number >= 1 and number == int(number)),
)
# Fields of one config: the first divides the second, or is at most that.
_DIVIDING = (("num_key_value_heads", "num_attention_heads"),)
_AT_MOST = tuple(
    ("num_experts_per_tok", experts)
    for experts in ("num_local_experts", "num_experts", "n_routed_experts")
)


def check_values(config: Any, overrides: Mapping[str, Value]) -> None:
    """Refuse numbers that no model can have in these fields, of a config that holds them.

    A model is built, and computes, with an epsilon below 0 or with half as many heads as it has
    key heads, and what comes out is noise or NaN.

    Args:
        config: as ``override_config`` leaves it.
        overrides: dotted paths of fields -> their values; what is no number is not looked at.

    Raises:
        UsageError: naming the first such field, and what may stand there.
    """
    for path, value in overrides.items():
        parent, _, name = path.rpartition(".")
        for number in _numbers_in(value):
            infinite = math.isinf(number) and number is value  # the end of a range may be
            if math.isnan(number) or infinite:
                raise _refusal(path, value, "a finite number")
            for pattern, wanted, fits in _NUMBERS:
                if re.fullmatch(pattern, name) and not fits(number):
                    raise _refusal(path, value, wanted)
            if name.endswith("_token_id") and not -1 <= number < _vocabulary(config):
                raise _refusal(
                    path, value, f"a token id below {_vocabulary(config):,}, -1 for none"
                )
        holder = _held(config, parent)
        for part, whole in _DIVIDING:
            few, many = _whole(holder, part), _whole(holder, whole)
            if name in (part, whole) and few and many and many % few:
                raise _refusal(path, value, f"{whole} is {many}, and {part} {few} has to divide it")
        for part, whole in _AT_MOST:
            few, many = _whole(holder, part), _whole(holder, whole)
            if name in (part, whole) and few and many and few > many:
                raise _refusal(path, value, f"{part} is {few}, and at most {whole}, {many}")


def check_name(path: str, current: object, value: Value) -> None:
    """Refuse what is no name where a field holds one of transformers' table.

    Transformers looks it up while it builds the model, and says no more than the name.

    Raises:
        UsageError: the table has no such entry; the nearest ones are given.
    """
    from transformers.activations import ACT2FN
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known: set[str] = set()
    if path.startswith("rope_") and path.rpartition(".")[2] in ("rope_type", "type"):
        known = {"default", *ROPE_INIT_FUNCTIONS}
    elif isinstance(current, str) and current in ACT2FN:
        known = set(ACT2FN)
    if known and value is not None and value not in known:
        raise _refusal(path, value, f"one of: {', '.join(sorted(known))}", known)


def _refusal(path: str, value: Value, wanted: str, known: set[str] | None = None) -> UsageError:
    close = nearest(str(value), known) if known else ""
    return UsageError(
        f"config.{path} cannot be {value!r}{close}", hint=wanted, target=f"config.{path}"
    )


def _numbers_in(value: object) -> Iterator[float]:
    """A number, or those of a list: of one for each layer, or several token ids."""
    for number in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            yield number


def _held(config: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def _whole(holder: Any, name: str) -> int:
    value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    return value if type(value) is int else 0


def _vocabulary(config: Any) -> float:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "vocab_size", None) or math.inf
