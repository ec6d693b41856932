"""How prompts of two models differ, in words, and what to do about each kind."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.prompt_difference import PromptDifference
from evalguard.core.reports.findings import Quote, QuotedSide

_MOST = 3  # kinds that one sentence says
_OTHER = {"base": "candidate", "candidate": "base"}
_THINKING = {
    "": "not begun",
    "open": "begun by the prompt",
    "closed": "switched off (an empty thinking part)",
    "asked off": "asked off (/no_think)",
}
_TEMPLATE = "give both one chat template (model_args: tokenizer)"
_THINKING_HINT = "give both the same model_args: enable_thinking"
_HINTS = {
    "conversation": "ask both the same way: by a chat endpoint, or with the template here",
    "thinking": _THINKING_HINT,
    "system_prompt": "--system_instruction TEXT gives both one system prompt",
    "text_before": "--system_instruction TEXT gives both one system prompt",
    "date": 'model_args: chat_template_args: {"date_string": "26 Jul 2024"} on both, where the '
    "template takes one",
    "fewshot_turns": "give both the same run: fewshot_as_multiturn",
    "cut_left": "fewer --num_fewshot, or a context length that holds the prompts",
    "double_bos": "leave BOS to the template or to the tokenizer (model_args: add_bos_token)",
    "missing_bos": "leave BOS to the template or to the tokenizer (model_args: add_bos_token)",
    "special_as_text": "the tokenizer has to know the template's marks as special tokens",
}


def prompt_differences_text(found: Sequence[PromptDifference], looked: int) -> str:
    """Say how prompts differ, without words of theirs; "" for nothing.

    >>> one = PromptDifference(kind="missing_bos", only="base", base="<s>", documents=8)
    >>> prompt_differences_text([one], looked=8)
    "only the base's begin with BOS (<s>)"
    """
    told = []
    for one in found[:_MOST]:
        some = f", in {one.documents:,} of {looked:,}" if one.documents < looked else ""
        told.append(f"{prompt_difference_text(one)}{some}")
    if len(found) > _MOST:
        told.append(f"and {len(found) - _MOST} more")
    return "; ".join(told)


# What stands on the sides there is a mark that templates write, or no text of the prompts.
_UNQUOTED = frozenset(
    {"role_marks", "double_bos", "missing_bos", "other_bos", "thinking", "tokens"}
    | {"special_as_text", "conversation", "tools", "cut_left", "fewshot_turns", "turn_ends"}
)


def quote_prompts(found: Sequence[PromptDifference]) -> tuple[Quote, ...]:
    """Return what stands on each side where prompts differ."""
    sides: tuple[QuotedSide, ...] = ("base", "candidate")
    return tuple(
        Quote(what="prompt", side=side, text=getattr(one, side))
        for one in found[:_MOST]
        if one.kind not in _UNQUOTED
        for side in sides
        if getattr(one, side)
    )


def prompt_difference_hint(found: Sequence[PromptDifference]) -> str:
    """What to do about it, once for each thing to do."""
    hints = dict.fromkeys(_HINTS.get(one.kind, _TEMPLATE) for one in found[:_MOST])
    return "; ".join(hints)


def prompt_difference_text(one: PromptDifference) -> str:
    """Say one way in which prompts differ."""
    only, other = one.only, _OTHER.get(one.only, "")
    own = one.candidate if only == "candidate" else one.base
    match one.kind:
        case "conversation":
            return f"the {only} is sent messages, which its server renders by a template of its own"
        case "role_marks" if only:
            return f"only the {only}'s are made by a chat template: {own}"
        case "role_marks":
            return f"another chat template: {one.base} and {one.candidate}"
        case "double_bos":
            return f"the {only}'s begin with BOS twice ({own})"
        case "missing_bos":
            return f"only the {only}'s begin with BOS ({own})"
        case "other_bos":
            return f"another BOS: {one.base} and {one.candidate}"
        case "generation_prompt" if only:
            return f"the {other}'s end without a generation prompt"
        case "generation_prompt":
            return "another generation prompt"
        case "thinking":
            return f"thinking: {_THINKING[one.base]} and {_THINKING[one.candidate]}"
        case "tools":
            return f"the {other}'s tell of no tools"
        case "system_prompt" if only:
            return f"only the {only}'s have a system prompt"
        case "system_prompt":
            return "another system prompt"
        case "system_place":
            return f"the system prompt is a turn in the {only}'s, part of the question in the other"
        case "date":
            return "another date in the template"
        case "fewshot_turns":
            return f"examples are turns in the {only}'s, and one text in the {other}'s"
        case "turn_ends":
            return f"only the {only}'s close each turn by an end mark"
        case "text_before":
            return f"the {only}'s have more before the first question"
        case "cut_left":
            return f"the {only}'s begin {one.at:,} characters later"
        case "white_space":
            return f"white space alone, first at character {one.at:,}"
        case _:
            return f"they first differ at character {one.at:,}"


def token_difference_text(one: PromptDifference) -> str:
    """Say how the token ids of one text differ."""
    only, other = one.only, _OTHER.get(one.only, "")
    match one.kind:
        case "double_bos":
            return f"the {only} reads its first token, BOS, twice"
        case "missing_bos":
            first = (one.base if only == "base" else one.candidate).split()[0]
            return f"only the {only} reads token {first} before each text"
        case "cut_left":
            return f"the {only} leaves out the first {one.at:,} tokens"
        case "special_as_text":
            marks = "mark" if one.at == 1 else "marks"
            return (
                f"the {only} reads {one.at:,} {marks} of the template as text, the {other} as "
                "single tokens"
            )
        case _:
            return f"they first differ at token {one.at:,}"
