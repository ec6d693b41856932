"""What stands beside the weights and changes: configs, tokenizers, templates."""

from __future__ import annotations

import os

from world_changes import Case, text

_CHAT = {"apply_chat_template": True}
BESIDE: dict[str, Case] = {
    "epsilon of the config": Case(
        text("model/config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-01')
    ),
    "rotary base of the config, times kept": Case(
        text("model/config.json", "10000.0", "50000.0", keep_times=True)
    ),
    "generation config": Case(
        text("model/generation_config.json", "{", '{"no_repeat_ngram_size": 1,')
    ),
    "rules of the tokenizer": Case(
        text("model/tokenizer.json", '_prefix_space": false', '_prefix_space": true')
    ),
    "special tokens": Case(
        text("model/tokenizer_config.json", '_token": "<s>"', '_token": "</s>"'), matters=None
    ),
    "chat template": Case(
        text("model/chat_template.jinja", "m['content'] }} ", "m['content'] }}!"), given=_CHAT
    ),
    "a readme": Case(
        lambda folder, _: (folder / "model" / ".README").write_text("x") and None,
        matters=False, scored=False,
    ),
    "times of all files": Case(
        lambda folder, _: [os.utime(p, (1, 1)) for p in folder.rglob("*")] and None,
        matters=False, scored=False,
    ),
}  # fmt: skip
