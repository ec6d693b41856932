"""Texts that loop and texts that repeat honestly, labelled: written here, and by the demo's model.

    python -m benchmarks.loop_texts tests/loop_texts/texts.jsonl

Everything follows from one seed but the texts of the demo's model, which follow from its weights;
with a fault (attention scores a third of what they are) it loops. Every second text of a kind is
held out: constants were chosen without it.
"""

# ruff: noqa: E501 - texts stand as they are
from __future__ import annotations

import base64
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SEED = 34
Draw = random.Random


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledText:
    """A text, why it ended ("length", "stop", "": nobody says), and whether it loops."""

    kind: str
    loops: bool
    ended: str
    text: str


SENTENCES = (
    "The bridge was closed on Monday because of the flood.", "Heat flows from the warm side to the cold one.",
    "She opened the letter, read it twice and said nothing.", "A prime number has exactly two divisors.",
    "The train leaves at nine and arrives before noon.", "Bread needs flour, water, salt and time.",
    "In autumn the storks fly south along the coast.", "The function returns the smallest key of the map.",
    "Nobody had told him that the shop was closed.", "Copper conducts better than iron.",
    "The committee met again after the holidays.", "Most of the lake is less than ten metres deep.",
    "If the test fails, the build stops.", "He counted the coins and put them back into the jar.",
    "The second half of the book is about her father.", "Sound travels faster in water than in air.",
    "They sold the farm in the spring and moved to the town.", "The answer depends on what is held constant.",
    "A good knife is heavier than it looks.", "The map shows three roads, of which one is closed.",
    "Rain is expected in the north by the evening.", "The patient was sent home after two days.",
    "Each node keeps a list of its neighbours.", "The old theatre has four hundred seats.",
)  # fmt: skip
OTHER_SENTENCES = (
    "Мост закрыли в понедельник из-за паводка.", "Поезд отправляется в девять и прибывает до полудня.",
    "Осенью аисты летят на юг вдоль берега.", "Никто не сказал ему, что магазин закрыт.",
    "橋は洪水のため月曜日に閉鎖された。", "列車は九時に出て、正午前に着く。", "秋になるとコウノトリは南へ飛ぶ。",
    "桥因为洪水在星期一关闭了。", "火车九点出发，中午以前到达。", "秋天，鹳沿着海岸向南飞。",
    "다리는 홍수 때문에 월요일에 폐쇄되었다.", "기차는 아홉 시에 출발한다.",
    "أُغلق الجسر يوم الاثنين بسبب الفيضان.", "يغادر القطار في التاسعة ويصل قبل الظهر.",
    "สะพานปิดเมื่อวันจันทร์เพราะน้ำท่วม", "รถไฟออกเวลาเก้าโมง",
    "बाढ़ के कारण पुल सोमवार को बंद रहा।", "रेलगाड़ी नौ बजे निकलती है।",
    "Η γέφυρα έκλεισε τη Δευτέρα λόγω πλημμύρας.", "Το τρένο φεύγει στις εννέα.",
)  # fmt: skip
PHRASES = (
    "I am not sure. ", "and then ", "the same as ", "of the ", "Wait, let me check again. ",
    "I'm sorry, but I can't. ", "no, ", "it is what it is, ", "very ", "Thank you! ", "Answer: B\n",
    "So the answer is 42.\n", "####\n\nQuestion: ", "<br>", "def f(x):\n    return f(x)\n", "\\boxed{7} ",
    "import os\n", "x = x + 1\n", "| - | none |\n", "\"name\": \"\", ",
)  # fmt: skip
WORDS = (
    "river", "stone", "lamp", "green", "walk", "seven", "paper", "north", "glass", "bread", "under",
    "cloud", "wheel", "quiet", "salt", "ship",
)  # fmt: skip


def prose(draw: Draw, sentences: int) -> str:
    """Different sentences, one after the other."""
    return " ".join(draw.sample(SENTENCES, sentences))


def turns(draw: Draw, period: str, least: int) -> str:
    """A period again and again, to ``least`` characters and a part of one more."""
    whole = period * (least // len(period) + 1)
    return whole + period[: draw.randrange(len(period))]


def looping(draw: Draw) -> Iterator[tuple[str, str, str]]:
    """Kind, ending and text of loops."""
    for phrase in PHRASES:
        yield (
            "phrase",
            "length",
            prose(draw, 2) + " " + turns(draw, phrase, draw.randrange(150, 900)),
        )
        yield (
            "phrase, ending unknown",
            "",
            prose(draw, 1) + " " + turns(draw, phrase, draw.randrange(400, 1200)),
        )
    for _ in range(16):
        paragraph = prose(draw, draw.randrange(3, 7)) + "\n\n"
        yield (
            "paragraph",
            "length",
            prose(draw, 2) + "\n\n" + turns(draw, paragraph, 3 * len(paragraph)),
        )
        sentence = draw.choice(SENTENCES) + draw.choice((" ", "\n", "\n- "))
        yield (
            "sentence",
            "length",
            prose(draw, 3) + " " + turns(draw, sentence, draw.randrange(200, 800)),
        )
        yield (
            "sentence, from the first word",
            "length",
            turns(draw, sentence, draw.randrange(160, 300)),
        )
    for sentence in OTHER_SENTENCES:
        yield (
            "other script",
            "length",
            draw.choice(OTHER_SENTENCES) + turns(draw, sentence, draw.randrange(120, 500)),
        )
    for mark in (
        "\n",
        " ",
        "\t\n",
        "!",
        "-",
        "=",
        "0",
        ".",
        "、",
        "的",
        "ha",
        "A",
        "\u200b",
        "| ",
        "()",
        "🙂",
    ):
        yield (
            "marks and white space",
            "length",
            prose(draw, 1) + turns(draw, mark, draw.randrange(150, 700)),
        )
    for form in (
        "Step {}: wait, let me check that again.\n", "{}. The river is a river.\n", "Question {}: what is the answer?\n",
        "Now we add {} to the sum, which is not right.\n", "def test_case_{}(self):\n    pass\n\n", "Chapter {}: The Journey Home\n",
        "line {} of the poem, line {} of the song\n", "(version {}) Let me try once more.\n",
    ):  # fmt: skip
        for _ in range(2):
            first, count = draw.randrange(1, 90), draw.randrange(12, 60)
            rows = [form.replace("{}", str(first + turn)) for turn in range(count)]
            yield (
                "counting",
                "length",
                prose(draw, 1) + "\n" + "".join(rows)[: -draw.randrange(1, 8)],
            )
    for _ in range(10):
        phrase = draw.choice(PHRASES)
        text = prose(draw, 2) + " " + phrase * (draw.randrange(500, 1500) // len(phrase) + 1)
        yield "ends by itself", "stop", text + draw.choice(("", "", ".", "\n", '"}'))
    for _ in range(10):
        item = json.dumps({"name": draw.choice(WORDS), "note": draw.choice(SENTENCES)}) + ", "
        yield "JSON items", "length", '{"items": [' + turns(draw, item, draw.randrange(400, 900))
    for _ in range(10):
        block = "".join(
            f"{' ' * draw.choice((0, 4))}{draw.choice(WORDS)}({draw.choice(WORDS)})\n"
            for _ in range(6)
        )
        yield (
            "code",
            "length",
            f"def {draw.choice(WORDS)}():\n" + turns(draw, block, 4 * len(block)),
        )
    for _ in range(8):
        pair = [draw.choice(SENTENCES) for _ in range(3)]
        text = " ".join(draw.choice(pair) for _ in range(24))
        yield "order that changes", "length", text[: -draw.randrange(1, 30)]
    for _ in range(8):
        frame = f"The {{}} is in the {draw.choice(WORDS)}, and so is the {draw.choice(WORDS)}. "
        yield (
            "words that change",
            "length",
            "".join(frame.format(draw.choice(WORDS)) for _ in range(14)),
        )


POEMS = (
    "The mill goes round, the mill goes round,\nThe miller sleeps below;\nThe mill goes round, the mill goes round,\n"
    "The water has to go.\n\nThe moon goes round, the moon goes round,\nThe cat sits on the wall;\nThe moon goes round, "
    "the moon goes round,\nAnd never lets us fall.\n\nThe mill goes round, the mill goes round.",
    "Rain, rain, over the hill,\nRain on the roof and the window sill.\nSing, little drop, sing, little drop,\nSing till "
    "the morning, and then you may stop.\n\nWind, wind, over the hill,\nWind in the oak that is never still.\nSing, "
    "little leaf, sing, little leaf,\nSing of the summer, for summer is brief.",
    "Oh ho, oh ho, the ship goes out,\nOh ho, oh ho, with salt and stout,\nOh ho, oh ho, the sail is white,\nOh ho, oh "
    "ho, and so good night,\ngood night, good night, good night, good night.",
    "La la la, la la la,\nsummer is here.\nLa la la, la la la,\nsummer is near.\nLa la la, la la la, la la la, la la la!",
)  # fmt: skip


def honest(draw: Draw) -> Iterator[tuple[str, str, str]]:
    """Kind, ending and text of what repeats, if at all, because it is meant to."""
    for _ in range(14):
        yield (
            "prose",
            draw.choice(("stop", "length", "")),
            prose(draw, draw.randrange(4, 14))[: draw.randrange(150, 900)],
        )
    for poem in POEMS:
        yield "poem with refrain", "stop", poem
        yield "poem with refrain", "length", poem[: draw.randrange(len(poem) // 2, len(poem))]
        verses = poem.split("\n\n")
        yield (
            "poem with refrain",
            "stop",
            "\n\n".join([*verses, "Refrain:\n" + verses[0], verses[-1]]),
        )
    for ended in ("stop", "length") * 7:
        n = draw.randrange(8, 40)
        mark = draw.choice(("- ", "* ", "{}. ", "{}) "))
        items = [
            mark.replace("{}", str(i + 1)) + f"{draw.choice(WORDS)} and {draw.choice(WORDS)}"
            for i in range(n)
        ]
        yield "list", ended, "Here is the list:\n" + "\n".join(items)
    for ended in ("stop", "length") * 7:
        rows = [
            f"| {draw.choice(WORDS):8} | {draw.randrange(100):4} | {draw.random():.3f} |"
            for _ in range(draw.randrange(5, 30))
        ]
        head = ["| name     |  n   | share |", "|----------|------|-------|"]
        border = "+----------+------+-------+"
        yield "table", ended, "\n".join([border, *head, *rows, border])
    for ended in ("stop", "length") * 6:
        k, rule = draw.randrange(2, 13), draw.choice("-=*~_") * draw.randrange(20, 80)
        table = "\n".join(f"{k} x {i} = {k * i}" for i in range(1, draw.randrange(11, 21)))
        yield "multiplication table", ended, table
        yield "rule", ended, f"{rule}\n{prose(draw, 2)}\n{rule}"
    for _ in range(12):
        fields = [draw.choice(WORDS) for _ in range(draw.randrange(4, 9))]
        body = "".join(f"        self.{name} = {name}\n" for name in fields)
        tests = "".join(
            f"    def test_{a}(self):\n        self.assertEqual({a}({i}), {i * i % 7})\n\n"
            for i, a in enumerate(fields)
        )
        yield (
            "code",
            draw.choice(("stop", "length")),
            f"class A:\n    def __init__(self, {', '.join(fields)}):\n{body}\n{tests}",
        )
        closers = "\n".join(" " * 4 * i + "}" for i in reversed(range(draw.randrange(4, 9))))
        yield (
            "code that closes",
            "stop",
            "void f() {\n    for (;;) {\n        if (a) {\n            g(a);\n" + closers,
        )
    for _ in range(12):
        records = [
            {"id": i + 1, "name": draw.choice(WORDS), "value": draw.randrange(1000)}
            for i in range(draw.randrange(4, 20))
        ]
        text = json.dumps(records, indent=draw.choice((None, 2)))
        ended = draw.choice(("stop", "length"))
        yield (
            "JSON",
            ended,
            text if ended == "stop" else text[: draw.randrange(len(text) // 2, len(text))],
        )
    for _ in range(8):
        zeros = ", ".join(["0"] * draw.randrange(20, 120))
        yield "array of equal values", "stop", f"int a[] = {{{zeros}}};"
        nulls = ", ".join([draw.choice(("null", "false", '""', "None"))] * draw.randrange(8, 30))
        yield "array of equal values", "stop", f'{{"a": [{nulls}]}}'
    for power in (10**100, 2**400, 10**60 // 7, 3**300, 10**40 + 1, 7**200):
        yield "long number", "stop", f"The result is {power}"
        yield "long number", "length", f"It begins as {power}"
    for _ in range(6):
        raw = bytes(draw.randrange(256) for _ in range(150)) + bytes(draw.randrange(0, 140))
        yield "base64", "stop", base64.b64encode(raw).decode()
        lines = "\n".join(
            f"{i * 16:08x}  " + " ".join(f"{b:02x}" for b in raw[i * 16 : i * 16 + 16])
            for i in range(14)
        )
        yield "hex dump", draw.choice(("stop", "length")), lines
        yield (
            "DNA",
            "stop",
            "".join(draw.choice("ACGT") for _ in range(200)) + "TTAGGG" * draw.randrange(4, 25),
        )
    for _ in range(16):
        yield (
            "other script",
            draw.choice(("stop", "length")),
            "".join(draw.sample(OTHER_SENTENCES, draw.randrange(2, 8))),
        )
    for text in ("ハハハハハハ、面白い。", "哈哈哈哈哈哈哈，太好笑了！哈哈哈哈", "ja ja ja ja, claro que sí", "no no no no no no no!", "ha" * 20,
                 "Да, да, да, да, да!", "bye bye bye bye bye bye", "goooooooooooooooooal!!!!!!!!!!!!", "tick tock tick tock tick tock tick tock"):  # fmt: skip
        yield "laughter and calls", "stop", text
        yield "laughter and calls", "length", prose(draw, 1) + " " + text
    for _ in range(12):
        phrase = draw.choice(PHRASES)
        yield (
            "loop that is left",
            draw.choice(("stop", "length")),
            phrase * draw.randrange(8, 60) + "\n" + prose(draw, 4),
        )
    for _ in range(8):
        line = draw.choice(SENTENCES)
        yield "song that fades", "stop", f"{prose(draw, 3)}\n{line}\n{line}\n{line}"
        asked = draw.choice(("Yes", "No", "A", "B", "True"))
        answers = "\n".join(
            f"{i + 1}. {draw.choice((asked, 'Not given'))}" for i in range(draw.randrange(6, 20))
        )
        yield "answers of few words", draw.choice(("stop", "length")), answers
    for bottles in (99, 40, 12):
        verse = "{0} green bottles on the wall,\n{0} green bottles,\ntake one down, pass it round:\n{1} green bottles on the wall.\n\n"
        yield (
            "song that counts",
            "stop",
            "".join(verse.format(n, n - 1) for n in range(bottles, 0, -1))
            + "No more bottles on the wall.",
        )
    for _ in range(10):
        log = [
            f"12:{draw.randrange(60):02}:{draw.randrange(60):02} {draw.choice(('INFO', 'WARN'))} {draw.choice(WORDS)}: {draw.choice(('ok', 'done', 'retry'))}"
            for _ in range(25)
        ]
        yield "log", draw.choice(("stop", "length")), "\n".join(log)
        dialogue = "\n".join(
            f"{'Ana' if i % 2 else 'Bob'}: {draw.choice(SENTENCES)}" for i in range(12)
        )
        yield "dialogue", draw.choice(("stop", "length")), dialogue
    for _ in range(8):
        terms = [draw.randrange(2, 9) for _ in range(12)]
        steps = [
            f"Step {i + 1}: {sum(terms[:i])} + {terms[i]} = {sum(terms[: i + 1])}."
            for i in range(12)
        ]
        yield "derivation", draw.choice(("stop", "length")), "\n".join(steps)


def of_demo() -> Iterator[tuple[str, bool, str, str]]:
    """What the demo's model goes on to write after the beginnings of its documents.

    With the fault, whatever did not come to its end is a loop. Without, a text is one whose last
    sentence stands there five times in a row; one that ends in two to four is left out.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    documents = ROOT / "tasks" / "data" / "evalguard_lastword.jsonl.gz"
    with gzip.open(documents, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line, _ in zip(file, range(600), strict=False)]
    beginnings = list(dict.fromkeys(" ".join(line["text"].split()[:12]) for line in lines))[:60]
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "demo" / "model")
    for fault in (1.0, 0.3):
        model = AutoModelForCausalLM.from_pretrained(ROOT / "demo" / "model")
        for layer in model.model.layers:
            layer.self_attn.scaling *= fault
        for beginning in beginnings:
            asked = tokenizer(beginning, return_tensors="pt")
            with torch.no_grad():
                told = model.generate(**asked, max_new_tokens=160, do_sample=False, pad_token_id=0)
            new = told[0, asked.input_ids.shape[1] :]
            ended = "stop" if int(new[-1]) == tokenizer.eos_token_id else "length"
            text = tokenizer.decode(new, skip_special_tokens=True)
            sentences = [one.strip() for one in text.split(".") if one.strip()]
            same = next((i for i, s in enumerate(reversed(sentences)) if s != sentences[-1]), 99)
            if fault != 1.0 and ended == "length":
                yield "demo's model, faulty", True, ended, text
            elif same >= 5:
                yield "demo's model, ends by itself", True, ended, text
            elif fault == 1.0 and same == 1:
                yield "demo's model", False, ended, text


def labelled_texts() -> Iterator[LabelledText]:
    """All of them, kind by kind."""
    sides: tuple[tuple[bool, Callable[[Draw], Iterator[tuple[str, str, str]]]], ...]
    sides = ((True, looping), (False, honest))
    for loops, write in sides:
        for kind, ended, text in write(Draw(SEED)):
            yield LabelledText(kind=kind, loops=loops, ended=ended, text=text)
    for kind, loops, ended, text in of_demo():
        yield LabelledText(kind=kind, loops=loops, ended=ended, text=text)


def main(path: Path) -> None:
    """Write them as JSON lines, in the order of their kinds."""
    seen: dict[tuple[str, bool], int] = {}
    with path.open("w", encoding="utf-8") as file:
        for one in sorted(labelled_texts(), key=lambda one: (not one.loops, one.kind)):
            number = seen[one.kind, one.loops] = seen.get((one.kind, one.loops), -1) + 1
            row = {
                "kind": one.kind,
                "loops": one.loops,
                "ended": one.ended,
                "held_out": number % 2 == 1,
                "text": one.text,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
