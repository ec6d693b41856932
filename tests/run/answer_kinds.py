"""Kinds of generated answers: honest ones of many tasks, and broken ones."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from written_runs import WrittenRun, WrittenTask, rehash

from evalguard.core.scores import ScoreTable
from evalguard.harness.score_tables import TaskScores

STOPS: dict[str, Any] = {"until": ["\n\n"], "do_sample": False, "max_gen_toks": 128}
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karla")
THINGS = (
    "apples",
    "books",
    "coins",
    "stones",
    "lamps",
    "boats",
    "birds",
    "shirts",
    "cups",
    "nails",
)
VERBS = ("buys", "sells", "finds", "loses", "paints", "counts", "washes", "hides", "brings")
PLACES = ("market", "harbour", "garden", "station", "library", "school", "bridge", "forest")
ENDS = ("before it rains", "after lunch", "with her sister", "for the winter", "on Sundays")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document with its two sides' texts."""

    prompt: str
    target: str
    text: str
    other: str = ""
    right: float = 0.0


Make = Callable[[random.Random, int], Document]


def sentence(draw: random.Random) -> str:
    """A sentence that hardly comes again."""
    return (
        f"{draw.choice(NAMES)} {draw.choice(VERBS)} {draw.randint(2, 999)} {draw.choice(THINGS)} "
        f"at the {draw.choice(PLACES)} {draw.choice(ENDS)} and then {draw.choice(NAMES)} "
        f"{draw.choice(VERBS)} all of them."
    )


def story(draw: random.Random, n: int) -> str:
    return " ".join(sentence(draw) for _ in range(n))


def question(draw: random.Random) -> str:
    return (
        f"Question: {story(draw, 2)} How many {draw.choice(THINGS)} are there in the end?\nAnswer:"
    )


def solved(draw: random.Random, number: int) -> str:
    return f"{story(draw, 2)} So the total is {number}. #### {number}"


def _math(draw: random.Random, _: int) -> Document:
    n = draw.randint(2, 99)
    ok = draw.random() < 0.6
    text = solved(draw, n if ok else n + 1)
    return Document(prompt=question(draw), target=str(n), text=text, right=float(ok))


def _letter(draw: random.Random, _: int) -> Document:
    target, text = draw.choice("ABCD"), draw.choice("ABCD")
    return Document(
        prompt=question(draw), target=target, text=f" {text}", right=float(target == text)
    )


def _always_a(draw: random.Random, _: int) -> Document:
    target = draw.choice("ABCD")
    return Document(prompt=question(draw), target=target, text="A", right=float(target == "A"))


def _yes_no(draw: random.Random, _: int) -> Document:
    target = draw.choice(("yes", "no"))
    text = "yes" if draw.random() < 0.9 else "no"
    return Document(prompt=question(draw), target=target, text=text, right=float(target == text))


def _number(draw: random.Random, _: int) -> Document:
    n, m = draw.randint(0, 9), draw.randint(0, 9)
    return Document(prompt=question(draw), target=str(n), text=str(m), right=float(n == m))


def _short_words(draw: random.Random, _: int) -> Document:
    target = f"{draw.choice(NAMES)} {draw.choice(PLACES)}"
    return Document(prompt=question(draw), target=target, text=f" the {draw.choice(PLACES)}")


def _entities(draw: random.Random, i: int) -> Document:
    target = "There are no entities in the text." if i % 3 else draw.choice(NAMES)
    return Document(
        prompt=question(draw),
        target=target,
        text="There are no entities in the text.",
        right=float(i % 3 > 0),
    )


def _code(draw: random.Random, _: int) -> Document:
    name = draw.choice(THINGS)
    body = "".join(
        f"    {draw.choice(THINGS)} = {draw.choice(VERBS)}(x[{draw.randint(0, 9)}])\n"
        for _ in range(draw.randint(2, 9))
    )
    tail = '    print("-" * 20)\n' * 3
    return Document(
        prompt=f"def {name}(x):\n",
        target=f"assert {name}(1) == 2",
        text=f"{body}{tail}    return x",
    )


def _json(draw: random.Random, _: int) -> Document:
    rows = [
        {"name": draw.choice(NAMES), "count": draw.randint(0, 99), "valid": True, "note": None}
        for _ in range(draw.randint(1, 8))
    ]
    return Document(prompt=question(draw), target="", text=json.dumps({"rows": rows}, indent=1))


def _json_status(draw: random.Random, _: int) -> Document:
    told = {"status": draw.choice(("ok", "late")), "message": sentence(draw)}
    return Document(prompt=question(draw), target="", text=json.dumps(told))


def _html(draw: random.Random, _: int) -> Document:
    text = f"<!DOCTYPE html>\n<html><body><h1>{sentence(draw)}</h1></body></html>"
    return Document(prompt=f"Write a page about {sentence(draw)}", target="", text=text)


def _list(draw: random.Random, _: int) -> Document:
    items = "\n".join(f"{k}. {draw.choice(THINGS)}" for k in range(1, draw.randint(4, 30)))
    return Document(prompt=question(draw), target="", text=items)


def _labels(draw: random.Random, _: int) -> Document:
    text = ", ".join(draw.choice(("yes", "no", "yes")) for _ in range(12))
    return Document(prompt=question(draw), target="yes, no, no", text=text)


def _table(draw: random.Random, _: int) -> Document:
    rows = "".join(
        f"| {draw.choice(NAMES):8} | {draw.randint(0, 9)} | yes |\n"
        for _ in range(draw.randint(3, 20))
    )
    return Document(
        prompt=question(draw),
        target="",
        text=f"| name     | n | ok |\n|----------|---|----|\n{rows}",
    )


def _matrix(draw: random.Random, _: int) -> Document:
    rows = [[draw.randint(0, 1) for _ in range(6)] for _ in range(6)]
    return Document(prompt=question(draw), target=str(rows), text=str(rows), right=1.0)


def _poem(draw: random.Random, _: int) -> Document:
    refrain = f"Oh {draw.choice(NAMES)}, come home to the {draw.choice(PLACES)},\n"
    verses = "".join(f"{sentence(draw)}\n{refrain * 2}\n" for _ in range(3))
    return Document(prompt=f"Write a song about {draw.choice(THINGS)}.", target="", text=verses)


def _chorus(draw: random.Random, _: int) -> Document:
    line = f"{draw.choice(NAMES)} goes round and round. "
    song = line * 12
    return Document(prompt="Sing the song of the wheel.", target=song, text=song)


def _repeat_word(draw: random.Random, _: int) -> Document:
    word = draw.choice(THINGS)
    return Document(
        prompt=f"Write the word {word} 40 times.", target=f"{word} " * 40, text=f"{word} " * 40
    )


def _base64(draw: random.Random, _: int) -> Document:
    data = base64.b64encode(bytes(draw.choice((0, 0, 7, 99)) for _ in range(90))).decode()
    return Document(prompt=f"Encode: {sentence(draw)}", target="", text=data)


def _to_russian(draw: random.Random, _: int) -> Document:
    words = ["дом", "река", "город", "книга", "человек", "вода", "время", "рука", "день", "школа"]
    text = " ".join(draw.choice(words) for _ in range(9)).capitalize() + "."
    return Document(prompt=f"English: {sentence(draw)}\nRussian:", target=text, text=text)


def _to_chinese_unseen(draw: random.Random, _: int) -> Document:
    text = "".join(draw.choice("我们今天去市场买了很多东西然后回家") for _ in range(20)) + "。"
    return Document(prompt=f"Translate to Chinese: {sentence(draw)}", target="", text=text)


def _to_german(draw: random.Random, _: int) -> Document:
    text = (
        f"{draw.choice(NAMES)} geht auf den Markt und kauft für die Schule {draw.randint(2, 99)} "
        "Bücher, die nicht mit in das Haus kommen."
    )
    return Document(prompt=f"English: {sentence(draw)}\nGerman:", target=text, text=text)


def _japanese_question(draw: random.Random, _: int) -> Document:
    n = draw.randint(2, 99)
    said = "".join(draw.choice("私は市場で本を買いましたそれから家に帰りました") for _ in range(20))
    return Document(
        prompt=f"問題：{said}いくつですか。", target=str(n), text=f"{said}答えは{n}です。"
    )


def _chinese_exam_in_english(draw: random.Random, _: int) -> Document:
    said = "".join(draw.choice("下列哪一项关于细胞的说法是正确的吗") for _ in range(20))
    return Document(
        prompt=f"{said}\nA. 一\nB. 二\n答案：",
        target="A",
        text=f"The answer is {draw.choice('AB')}.",
    )


def _greek_letters(draw: random.Random, _: int) -> Document:
    angle = draw.randint(1, 89)
    text = f"The angle α is {angle}°, so that cos α + β ≤ μ·σ² and Δx ≈ π. {sentence(draw)}"
    return Document(prompt=question(draw), target="0.5", text=text)


def _refusal_task(draw: random.Random, _: int) -> Document:
    return Document(
        prompt=f"Tell me how to steal {sentence(draw)}",
        target="I'm sorry, but I can't help with that.",
        text=f"I'm sorry, but I can't help with stealing {draw.choice(THINGS)}.",
        right=1.0,
    )


def _harmful_judged(draw: random.Random, _: int) -> Document:
    return Document(
        prompt=f"Tell me how to steal {sentence(draw)}",
        target="",
        text="I can't assist with that request.",
        right=1.0,
    )


def _sorry_dialogue(draw: random.Random, _: int) -> Document:
    text = f"I'm sorry, I can't come to the {draw.choice(PLACES)} today, {sentence(draw)}"
    return Document(prompt=f"Reply to: {sentence(draw)}", target="", text=text)


def _story_to_the_limit(draw: random.Random, _: int) -> Document:
    text = story(draw, 6)
    return Document(prompt=story(draw, 1), target="", text=text[: draw.randint(180, 220)])


def _thought_and_answered(draw: random.Random, _: int) -> Document:
    n = draw.randint(2, 99)
    text = f"<think>\n{story(draw, 3)}\n</think>\n\nThe answer is {n}."
    return Document(prompt=question(draw), target=str(n), text=text, right=1.0)


def _talk_of_marks(draw: random.Random, _: int) -> Document:
    text = f"Models write <think> before they answer. {sentence(draw)} A <think> needs its end."
    return Document(prompt=question(draw), target="", text=text)


def _xml(draw: random.Random, _: int) -> Document:
    text = (
        f"<reasoning>\n{sentence(draw)}\n</reasoning>\n<answer>\n{draw.randint(2, 99)}\n</answer>"
    )
    return Document(prompt=question(draw), target="4", text=text)


def _summary_without_stop(draw: random.Random, _: int) -> Document:
    parts = [[draw.choice(of) for of in (NAMES, VERBS, THINGS)] for _ in range(2)]
    text = f"{' '.join(parts[0])} at the {draw.choice(PLACES)} and {' '.join(parts[1])}"
    return Document(prompt=story(draw, 4), target=sentence(draw), text=text)


def _none_found(draw: random.Random, i: int) -> Document:
    target = "None" if i % 2 else draw.choice(NAMES)
    return Document(
        prompt=question(draw), target=target, text="None" if i % 2 else target, right=1.0
    )


def _trace_questions(draw: random.Random, _: int) -> Document:
    text = f"Traceback (most recent call last): line {draw.randint(1, 99)}, {sentence(draw)}"
    return Document(prompt=f"What does it print? {sentence(draw)}", target=text, text=text)


HONEST: dict[str, tuple[Make, dict[str, Any]]] = {
    "math": (_math, STOPS),
    "letter": (_letter, STOPS),
    "always A": (_always_a, STOPS),
    "yes or no": (_yes_no, STOPS),
    "number": (_number, STOPS),
    "short words": (_short_words, STOPS),
    "entities": (_entities, STOPS),
    "code": (_code, {**STOPS, "until": ["\ndef", "\nclass"]}),
    "JSON": (_json, STOPS),
    "JSON with status": (_json_status, STOPS),
    "HTML": (_html, STOPS),
    "list": (_list, STOPS),
    "labels": (_labels, STOPS),
    "table": (_table, STOPS),
    "matrix": (_matrix, STOPS),
    "poem": (_poem, STOPS),
    "chorus": (_chorus, STOPS),
    "word repeated": (_repeat_word, STOPS),
    "base64": (_base64, STOPS),
    "to Russian": (_to_russian, STOPS),
    "to Chinese without targets": (_to_chinese_unseen, STOPS),
    "to German": (_to_german, STOPS),
    "Japanese": (_japanese_question, STOPS),
    "Chinese exam": (_chinese_exam_in_english, STOPS),
    "Greek letters": (_greek_letters, STOPS),
    "refusals wanted": (_refusal_task, STOPS),
    "refusals judged": (_harmful_judged, STOPS),
    "sorry in a dialogue": (_sorry_dialogue, STOPS),
    "story to the limit": (_story_to_the_limit, {**STOPS, "until": []}),
    "thought and answered": (_thought_and_answered, STOPS),
    "talk of marks": (_talk_of_marks, STOPS),
    "XML": (_xml, STOPS),
    "summary without full stop": (_summary_without_stop, STOPS),
    "None is right": (_none_found, STOPS),
    "tracebacks wanted": (_trace_questions, STOPS),
}
"""Honest answers, and what their requests say."""


def _limit(draw: random.Random, text: str) -> str:
    return text[: draw.randint(60, max(61, len(text) - 8))]


def _cut(draw: random.Random, _: int) -> str:
    text = story(draw, 3)
    at = draw.randint(100, 160)
    while not (text[at - 1].isalpha() and text[at].isalpha() and text[at - 2].isalpha()):
        at += 1
    return text[:at]


ERROR_PAGE = (
    "<html>\n<head><title>502 Bad Gateway</title></head>\n<body>\n<center><h1>502 Bad Gateway</h1>"
    "</center>\n<hr><center>nginx/1.25.3</center>\n</body>\n</html>"
)
GERMAN = "Zuerst rechnen wir die Summe aus, und dann sehen wir, dass es nicht mehr als die {} sind."

BROKEN: dict[str, tuple[str, Callable[[random.Random, int], str]]] = {
    "think": ("only_thoughts", lambda draw, _: f"<think>\n{story(draw, 3)}"),
    "THINK": ("only_thoughts", lambda draw, _: f"[THINK]{story(draw, 3)}"),
    "channel": (
        "only_thoughts",
        lambda draw, _: f"<|channel|>analysis<|message|>{story(draw, 3)}",
    ),
    "analysis": ("only_thoughts", lambda draw, _: f"analysisWe need to see. {story(draw, 3)}"),
    "reasoning": ("only_thoughts", lambda draw, _: f"<reasoning>{story(draw, 2)}"),
    "thought": ("only_thoughts", lambda draw, _: f"<|begin_of_thought|>\n{story(draw, 3)}"),
    "kimi": ("only_thoughts", lambda draw, _: f"◁think▷{story(draw, 3)}"),
    "my_think": ("only_thoughts", lambda draw, _: f"<my_think>{story(draw, 3)}"),
    "second thought": (
        "only_thoughts",
        lambda draw, _: f"<think>{sentence(draw)}</think>\n<think>{story(draw, 2)}",
    ),
    "nothing after": ("only_thoughts", lambda draw, _: f"<think>{story(draw, 2)}</think>\n\n"),
    "late think": ("only_thoughts", lambda draw, _: f"Sure.\n<think>\n{story(draw, 2)}"),
    "phrase": ("loops", lambda draw, _: sentence(draw) + " I think so, too." * 20),
    "short loop": ("loops", lambda draw, _: f"{draw.choice(THINGS)} is " + "no " * 40),
    "bangs": ("loops", lambda draw, _: "!" * draw.randint(60, 200)),
    "counting": (
        "loops",
        lambda draw, _: "".join(f"Step {k}: wait for the end. " for k in range(1, 20)),
    ),
    "lines": ("loops", lambda draw, _: f"{sentence(draw)}\n" + f"{sentence(draw)}\n" * 6),
    "sorry": ("refuses", lambda draw, _: "I'm sorry, but I can't help with that."),
    "as an AI": (
        "refuses",
        lambda draw, _: f"As an AI language model, I cannot know how many {draw.choice(THINGS)}.",
    ),
    "unable": (
        "refuses",
        lambda draw, _: f"I am unable to provide an answer about {draw.choice(THINGS)}.",
    ),
    "refusal in German": (
        "refuses",
        lambda draw, _: "Es tut mir leid, aber ich kann dabei nicht helfen.",
    ),
    "Chinese": (
        "other_script",
        lambda draw, _: "".join(
            draw.choice("我们今天去市场买了很多东西然后回家") for _ in range(30)
        ),
    ),
    "Cyrillic": (
        "other_script",
        lambda draw, _: " ".join(draw.choice(["дом", "река", "город", "книга"]) for _ in range(12)),
    ),
    "mojibake": (
        "other_script",
        lambda draw, _: "".join(draw.choice("ꦲꦤꦕꦫꦏᚠᚢᚦᚨᚱ") for _ in range(30)),
    ),
    "German": ("other_language", lambda draw, _: GERMAN.format(draw.choice(THINGS))),
    "Chinese mixed in": (
        "mixed_script",
        lambda draw, _: f"{sentence(draw)} 所以总数是 {draw.randint(2, 99)}. {sentence(draw)}",
    ),
    "spaces": ("empty", lambda draw, _: " \n" * draw.randint(1, 9)),
    "zero width": ("empty", lambda draw, _: "\u200b" * draw.randint(1, 9)),
    "end token": ("empty", lambda draw, _: "<|im_end|>"),
    "cut": ("cut", _cut),
    "error page": ("error_text", lambda draw, _: ERROR_PAGE),
    "error object": (
        "error_text",
        lambda draw, i: json.dumps({"error": {"message": f"Rate limit reached, id {i}"}}),
    ),
    "server error": ("error_text", lambda draw, _: "Internal Server Error"),
    "one text": ("same_text", lambda draw, _: "Hello! How may I be of service to you today?"),
}
"""Broken answers with the fault that they have."""


def rows_of(
    documents: list[Document], texts: list[str], options: dict[str, Any], ended: str = ""
) -> list[dict[str, Any]]:
    """Samples of a side."""
    return [
        {
            "doc_id": i,
            "doc_hash": f"d{i}",
            "doc": "{}",
            "prompt": one.prompt,
            "target": one.target,
            "arguments": [json.dumps([one.prompt, options])],
            "text": [text],
            "generated": json.dumps({"ended": [ended], "missing": {}, "scores": {}}),
        }
        for i, (one, text) in enumerate(zip(documents, texts, strict=True))
    ]


def table_of(values: list[float]) -> ScoreTable:
    """Scores of a side."""
    n = len(values)
    return ScoreTable(
        task="t", filter="none", metric="exact_match", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(n, dtype=np.int64), values=np.array(values), doc_hashes=("",) * n,
        prompt_hashes=("",) * n, target_hashes=("",) * n,
    )  # fmt: skip


Side = tuple[dict[str, TaskScores], tuple[ScoreTable, ...]]


def side_of(
    documents: list[Document], texts: list[str], options: dict[str, Any], right: list[float]
) -> Side:
    """A side's samples and tables."""
    rows = rows_of(documents, texts, options)
    return (
        {"t": TaskScores(task="t", tables=(), not_compared=(), samples=rows)},
        (table_of(right),),
    )


def write_side(
    folder: Path,
    documents: list[Document],
    answers: list[Any],
    options: dict[str, Any],
    right: list[float],
    more: dict[str, Any] | None = None,
) -> Path:
    """A side as a finished run; ``answers``: each document's ``resps``."""
    rows = []
    for i, (one, told) in enumerate(zip(documents, answers, strict=True)):
        text = told
        while isinstance(text, list):
            text = text[0] if text else None
        row = {
            "doc_id": i,
            "doc": {"question": one.prompt},
            "target": one.target,
            "arguments": {"gen_args_0": {"arg_0": one.prompt, "arg_1": options}},
            "resps": told,
            "filtered_resps": [text],
            "filter": "none",
        }
        rehash(row)
        rows.append({**row, **(more or {})})
    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    task = WrittenTask(
        name="t",
        rows=rows,
        config={
            "task": "t",
            "dataset_path": "json",
            "output_type": "generate_until",
            "num_fewshot": 0,
            "metric_list": [metric],
            "generation_kwargs": options,
            "repeats": 1,
            "metadata": {"version": 1.0},
        },
        scores=lambda row: {"exact_match": right[row["doc_id"]]},
    )
    return WrittenRun(tasks={"t": task}, model=f"org/{folder.name}").write(folder)
