"""Settings from the tokenizers of two models: the files, and BOS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evalguard.core.settings import Setting, Value
from evalguard.errors import EvaluationError
from evalguard.models.model_folders import hub_snapshot
from evalguard.models.tokenizer_files import load_tokenizer, puts_bos_first, tokenizer_files
from evalguard.run.bisection.argument_settings import argument_setting
from evalguard.run.bisection.model_differences import HFSide


def tokenizer_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings for tokenizers that differ, and notes.

    Where one puts BOS before a text and the other does not, that is a setting of its own, as far
    as BOS is all that the tokenizers put around a text.
    """
    if _tokenizer_source(base.model_args) == _tokenizer_source(candidate.model_args):
        return [], []
    try:
        for side in (base, candidate):  # hub files come here when they are first asked for
            load_tokenizer(side.model_args, trust_remote_code=side.variant.trust_remote_code)
        if _same_files(base, candidate):
            return [], []
        settings = [
            argument_setting("tokenizer", tokenizer_name(base), _tokenizer_value(candidate))
        ]
        settings += _bos_settings(base, candidate)
    except EvaluationError as error:
        return [], [f"tokenizer: {error}"]
    return settings, []


def tokenizer_name(side: HFSide) -> str:
    """Name a side's tokenizer so that it is found whatever the other arguments are."""
    source, revision, subfolder = _tokenizer_source(side.model_args)
    folder = Path(source).expanduser()
    if folder.exists():
        return str(folder / subfolder)
    if revision == "main" and not subfolder:
        return source
    snapshot = hub_snapshot(source, revision, subfolder)
    return source if snapshot is None else str(snapshot / subfolder)


def _tokenizer_value(side: HFSide) -> Value:
    return side.model_args.get("tokenizer")


def _bos_settings(base: HFSide, candidate: HFSide) -> list[Setting]:
    if base.model_args.get("add_bos_token") != candidate.model_args.get("add_bos_token"):
        return []  # an argument of loading, which is a setting already
    if base.model_args.get("add_bos_token") is not None:
        return []  # said, and the same
    first = [
        puts_bos_first(side.model_args, trust_remote_code=side.variant.trust_remote_code)
        for side in (base, candidate)
    ]
    if None in first or first[0] == first[1]:
        return []
    return [argument_setting("add_bos_token", first[0], first[1])]


def _same_files(base: HFSide, candidate: HFSide) -> bool:
    one, other = (tokenizer_files(side.model_args) for side in (base, candidate))
    return bool(one) and one == other


def _tokenizer_source(model_args: Mapping[str, Value]) -> tuple[str, str, str]:
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    revision = str(model_args.get("revision") or "main")
    return source, revision, str(model_args.get("subfolder") or "")
