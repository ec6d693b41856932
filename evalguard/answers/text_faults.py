"""TextFault: what is wrong with a generated text whatever its task, beside its prompt and target.

A text has a fault only where its target has not: what a target shows (a refusal, a refrain, another
script) is what the task asks for. A target that says nothing excuses nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evalguard.answers.document_figures import WrittenAnswer
from evalguard.answers.languages import find_other_language, find_other_scripts
from evalguard.core.chat import find_answer_after_thoughts
from evalguard.core.expected_answers import calls_of_message, message_fields
from evalguard.core.loops import find_dominant_loop
from evalguard.stats.uninformative import WRITTEN_NULLS, is_blank

TextFault = Literal[
    "empty",
    "error_text",
    "only_thoughts",
    "loops",
    "refuses",
    "other_script",
    "other_language",
    "mixed_script",
    "cut",
    "same_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """What a fault is.

    Attributes:
        text: what such answers are, after "180 of 200 answers".
        advice: what to look at.
        is_lost: whether such an answer shows nothing of what the model knows.
        excused: where nearly all of such answers are right, the task asks for such texts:
            "always"; or they are right for all that, which is no "loss" and still to be said.
    """

    text: str
    advice: str
    is_lost: bool = True
    excused: Literal["always", "loss", "never"] = "always"


FAULTS: dict[TextFault, FaultKind] = {
    "empty": FaultKind(
        text="are empty", advice="look at stop strings, chat template and end-of-text token"
    ),
    "error_text": FaultKind(
        text="are an error message of a server",
        advice="look at the server's log and ask these documents again",
        excused="never",
    ),
    "only_thoughts": FaultKind(
        text="are thoughts without an answer after them",
        advice="look at the token limit, stop strings (until) and whether thinking is to be on",
        excused="never",
    ),
    "loops": FaultKind(
        text="repeat themselves until their end",
        advice="look at chat template, stop strings and weights",
        excused="loss",
    ),
    "refuses": FaultKind(text="refuse", advice="look at prompt, system prompt and chat template"),
    "other_script": FaultKind(
        text="are in another script than prompt and target",
        advice="look at tokenizer, embeddings and chat template",
    ),
    "other_language": FaultKind(
        text="are in another language than prompt and target",
        advice="look at prompt, chat template and weights",
    ),
    "mixed_script": FaultKind(
        text="mix in words of a script that prompt and target do not have",
        advice="look at the last layer's weights, sampling and tokenizer",
        is_lost=False,
    ),
    "cut": FaultKind(
        text="are cut off before their end",
        advice="see whether they are to stop earlier, or raise the token limit",
    ),
    "same_text": FaultKind(
        text="are one and the same text for different documents",
        advice="look at prompts, and at limits and caches of the server",
    ),
}
"""In the order in which they are told; a text that has several counts for the first."""


def find_written_nulls(texts: Sequence[str], targets: Sequence[str]) -> list[bool]:
    """Of each text whether it is a null that was written as text; of no task that asks for one."""
    wanted = {target.strip().lower() for target in targets}
    return [text.strip() in WRITTEN_NULLS and text.strip().lower() not in wanted for text in texts]


def find_fault(answer: WrittenAnswer, prompt: str, target: str) -> TextFault | None:
    """Return what is wrong with one text by itself; None where nothing is.

    Args:
        prompt: "" where it is not shown: then no script or language is another one.
        target: "" where there is none.
    """
    text = answer.text
    if calls_of_message(answer.message):
        return None
    if is_blank(text):
        return None if is_blank(target) and target else "empty"
    if find_answer_after_thoughts(text, is_open=answer.thinking_open) == "":
        return "only_thoughts"
    if find_dominant_loop(text, answer.ended) and not find_dominant_loop(target, answer.ended):
        return "loops"
    if _is_refusal(answer) and not refuses(target):
        return "refuses"
    return _other_words(text, prompt, target)


def _other_words(text: str, prompt: str, target: str) -> TextFault | None:
    """Whether a text is written otherwise than its prompt and target are, and than they ask for."""
    if not prompt:
        return None
    scripts = find_other_scripts(text, prompt, target)
    if scripts == "all":
        return "other_script"
    if scripts == "some":
        return "mixed_script"
    return "other_language" if find_other_language(text, prompt, target) else None


# What servers, gateways and clients in front of a model write in place of its text.
_ERROR_WORDS = (
    r"error|fail|limit|unavailable|time-?d?\s?out|denied|invalid|exceeded|overloaded|unauthorized"
    r"|forbidden|not\s+found|5\d\d|4[0-2]\d"
)
_ERROR_BEGINS = (
    r"<!doctype\s+html|<html[\s>]|<head[\s>]|<\?xml[^>]*>\s*<error",
    r'\{\s*"(?:error|errors|detail|fault|message|code|status|object)"\s*:'
    rf"(?=.{{0,400}}?\b(?:{_ERROR_WORDS})\b)",
    r"(?:(?:error|http|status)[\s/\d.]*(?:code|error)?\s*[:=]?\s*)?(?:4[012]\d|5[02]\d)\s*[:-]?\s*"
    r"(?:bad|internal|service|gateway|too|unauthor|forbidden|not\s+found|proxy|payment|request"
    r"|client|server|error)",
    r"internal\s+server\s+error|bad\s+gateway|gateway\s+time-?\s?out|no\s+healthy\s+upstream",
    r"service\s+(?:is\s+)?(?:temporarily\s+)?unavailable|upstream\s+(?:connect|request)",
    r"too\s+many\s+requests|(?:api\s+)?rate\s?-?limit|(?:you\s+have\s+)?exceeded\s+your\b.{0,12}quota",
    r"connection\s+(?:refused|reset|error|timed\s+out|aborted)|read\s+timed\s+out|timeout\s*error",
    r"request\s+(?:timed\s+out|timeout|failed)|traceback\s+\(most\s+recent\s+call\s+last\)",
    r"(?:torch\.)?cuda\b.{0,20}(?:out\s*of\s*memory|error)|out\s+of\s+memory",
    r"(?:the\s+)?(?:server|model|engine|service)\s+is\s+(?:currently\s+|temporarily\s+)?"
    r"(?:overloaded|unavailable|busy|loading)",
    r"(?:an?\s+)?(?:unexpected\s+|internal\s+)?(?:error|exception)(?:\s+has)?\s+occurred\b",
    r"(?:error|exception)\s*:\s",
)
_ERROR_TEXT = re.compile(rf"\s*(?:{'|'.join(_ERROR_BEGINS)})", re.IGNORECASE | re.DOTALL)
_LONGEST_MESSAGE = 600
_NUMBER = re.compile(r"[0-9a-f-]{8,}|\d+")  # of requests, times and connections
_SAME_ERRORS = 3


def find_same_errors(
    texts: Sequence[str], prompts: Sequence[str], targets: Sequence[str]
) -> list[bool]:
    """Of each text whether it is an error message that several other documents are given too.

    One alone may be what was asked for, as may pages that differ.
    """
    places: dict[str, list[int]] = {}
    for at, (text, target) in enumerate(zip(texts, targets, strict=True)):
        if is_error_text(text) and not is_error_text(target):
            places.setdefault(_NUMBER.sub("0", text), []).append(at)
    same = [False] * len(texts)
    for own in places.values():
        if len({prompts[at] for at in own}) >= _SAME_ERRORS:
            for at in own:
                same[at] = True
    return same


def is_error_text(text: str) -> bool:
    """Whether a whole text is the error message, or page, of a server."""
    if _ERROR_TEXT.match(text) is None:
        return False
    begins_page = text.lstrip()[:1] == "<"
    return begins_page or len(text) <= _LONGEST_MESSAGE


_CANNOT = (
    r"i\s*(?:['’]m|\s+am)?\s*(?:can(?:['’]?t|\s?not)|(?:unable|not\s+able|not\s+allowed)\s+to"
    r"|won['’]?t|will\s+not|must\s+decline\s+to|have\s+to\s+decline\s+to)"
    r"\s+(?:be\s+able\s+to\s+)?(?:\w+ly\s+)?"
    r"(?:assist|help|provide|answer|fulfill?|comply|complete\s+th(?:is|at|e)|do\s+that|discuss|engage"
    r"|create|generate|offer|support|participate|respond|process|continue\s+(?:with\s+)?this|share"
    r"|give\s+(?:you|advice|instructions)|write|produce|recommend|advise|endorse|address"
    r"|accommodate)\b"
)
_REFUSALS = (
    rf"\b(?:sorry|apologi[sz]e|apologies|unfortunately)\b.{{0,40}}?\b{_CANNOT}",
    rf"^\W*(?:as\s+an?\s+(?:ai|artificial|language|large)\b.{{0,60}}?)?\b{_CANNOT}",
    r"\bas\s+an?\s+(?:ai|artificial\s+intelligence|(?:large\s+)?language\s+model)\b.{0,60}?"
    r"\bi(?:\s+(?:can(?:['’]?t|not)|do\s+not|don['’]t|am\s+(?:not|unable))|['’]m\s+(?:not|unable))",
    r"\bi\s+must\s+(?:respectfully\s+)?decline|\bi\s+(?:have\s+to\s+)?(?:refuse|decline)\s+to\b",
    r"\bi\s+don['’]t\s+feel\s+comfortable",
    r"\bes\s+tut\s+mir\s+(?:sehr\s+)?leid\b.{0,40}\b(?:kann|darf)\b.{0,60}\bnicht\b",
    r"\bdésolée?\b.{0,40}\bje\s+ne\s+(?:peux|suis)\b|\blo\s+siento\b.{0,40}\bno\s+puedo\b",
    r"\bdesculpe\b.{0,40}\bnão\s+posso\b|\bmi\s+dispiace\b.{0,40}\bnon\s+posso\b",
    r"(?:对不起|抱歉|很遗憾|對不起).{0,12}(?:无法|不能|無法)|죄송(?:하지만|합니다).{0,60}(?:없습니다|없어요)",
    r"申し訳(?:ありません|ございません).{0,40}(?:できません|できない|出来ません)",
    r"(?:извините|к\s+сожалению|простите).{0,20}не\s+могу\b",
)
_REFUSAL = re.compile("|".join(_REFUSALS), re.DOTALL)
_OPENING_OF_TEXT = 240
_MAY_REFUSE = (
    "sorry", "apolog", "unfortunately", "can't", "can’t", "cannot", "can not", "cant ", "unable",
    "not able", "not allowed", "won't", "won’t", "will not", "declin", "refuse", "as a",
    "comfortable", "leid", "désol", "siento", "desculpe", "dispiace", "对不起", "抱歉", "很遗憾",
    "對不起", "申し訳", "죄송", "извините", "сожалению", "простите",
)  # fmt: skip


def refuses(text: str) -> bool:
    """Whether a text begins by refusing to help, in words of common assistants.

    >>> refuses("I'm sorry, but I can't help with that."), refuses("I can't find the book.")
    (True, False)
    """
    begun = text.lstrip()[:_OPENING_OF_TEXT].lower()
    return any(part in begun for part in _MAY_REFUSE) and _REFUSAL.search(begun) is not None


def _is_refusal(answer: WrittenAnswer) -> bool:
    """By its words, or as the server says."""
    return refuses(answer.text) or (
        bool(answer.message) and bool(message_fields(answer.message).get("refusal"))
    )


# One text for many documents: a word or a number is given to many honestly; this long, of so many
# words, it is a message.
_FEWEST_CHARACTERS, _FEWEST_WORDS = 20, 4
_FEWEST_SHARING, _MANY_TARGETS = 5, 20


def find_same_texts(
    texts: Sequence[str], prompts: Sequence[str], targets: Sequence[str]
) -> list[bool]:
    """Of each text whether it is one that many documents are given whose answers differ.

    It is as long as a sentence, it is no document's target, and the targets of those documents are
    many: a class, or a form of "unanswerable", is given to many honestly.
    """
    wanted = {target.strip() for target in targets}
    places: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        places.setdefault(text.strip(), []).append(at)
    same = [False] * len(texts)
    for text, own in places.items():
        if len(own) < _FEWEST_SHARING or not _is_sentence(text):
            continue
        asked, due = ({side[at].strip() for at in own} for side in (prompts, targets))
        differ = len(asked) > len(own) / 2 and len(due) >= min(len(own) / 2, _MANY_TARGETS)
        if differ and text not in wanted:
            for at in own:
                same[at] = True
    return same


def _is_sentence(text: str) -> bool:
    letters = sum(map(str.isalpha, text))
    if not text.isascii() and letters >= _FEWEST_CHARACTERS / 2:
        return True
    words = len(text.split())
    return len(text) >= _FEWEST_CHARACTERS and words >= _FEWEST_WORDS and 2 * letters > len(text)


# Of a text that a limit may have cut: prose of so many words.
_PROSE = 8
_WORD = re.compile(r"[^\W\d_]+")
_SENTENCE_END = re.compile(r"[a-z)\]\d][.!?]\s")


def find_cut_words(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Of each text whether it ends in a part of a word, as a limit of tokens cuts it.

    Its last word stands nowhere whole, in no text and in none of ``others``, and another word
    begins with it, or the text had ended sentences before. Where half of the texts end so, those
    that end between two words are cut, too.

    Args:
        others: prompts and targets.
    """
    words: set[str] = set()
    for text in texts:
        text_words = _WORD.findall(text)
        words.update(text_words[:-1] if text[-1:].isalpha() else text_words)
    for text in others:
        words.update(_WORD.findall(text))
    in_order = sorted(words)
    prose = [len(text.split(maxsplit=_PROSE)) >= _PROSE for text in texts]
    cut = [
        is_prose and text[-1:].isalpha() and _ends_in_part(text, words, in_order)
        for text, is_prose in zip(texts, prose, strict=True)
    ]
    if 2 * sum(cut) < len(cut):
        return cut
    return [
        already or (is_prose and (text[-1:].isalpha() or text[-1:] in ", -"))
        for already, is_prose, text in zip(cut, prose, texts, strict=True)
    ]


def _ends_in_part(text: str, words: set[str], in_order: Sequence[str]) -> bool:
    last = _WORD.findall(text[-64:])[-1]
    if last in words:
        return False
    position = bisect_left(in_order, last)
    begins_a_word = position < len(in_order) and in_order[position].startswith(last)
    return begins_a_word or _SENTENCE_END.search(text) is not None
