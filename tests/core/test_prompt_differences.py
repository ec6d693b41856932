"""How two prompts differ is said by kind; each kind has been somebody's bug."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.chat import take_apart, thinking_of
from evalguard.core.prompt_difference import PromptDifference, compare_prompts, compare_token_ids

Messages = Sequence[Mapping[str, str]]

USER: Messages = ({"role": "user", "content": "How many apples are left?"},)
SYSTEM: Messages = ({"role": "system", "content": "You are Qwen, a helpful assistant."}, *USER)
SHOTS: Messages = (
    {"role": "user", "content": "Question: 1 + 1?\nAnswer:"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Question: 2 + 3?\nAnswer:"},
)
ONE_TEXT: Messages = (
    {"role": "user", "content": "Question: 1 + 1?\nAnswer: 2\n\nQuestion: 2 + 3?\nAnswer:"},
)


@dataclass(frozen=True)
class Template:
    """A template in the manner of public ones, with what each is known to do otherwise."""

    turn: str
    opened: str = ""
    bos: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, messages: Messages, *, opened: bool = True, tail: str = "") -> str:
        turns = (
            self.turn.format(role=self.names.get(one["role"], one["role"]), text=one["content"])
            for one in messages
        )
        return self.bos + "".join(turns) + (self.opened + tail if opened else "")


CHATML = Template("<|im_start|>{role}\n{text}<|im_end|>\n", "<|im_start|>assistant\n")
LLAMA3 = Template(
    "<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|begin_of_text|>",
)
GEMMA = Template(
    "<start_of_turn>{role}\n{text}<end_of_turn>\n", "<start_of_turn>model\n", "<bos>",
    {"assistant": "model"},
)  # fmt: skip
PHI = Template("<|{role}|>\n{text}<|end|>\n", "<|assistant|>\n")
ZEPHYR = Template("<|{role}|>\n{text}</s>\n", "<|assistant|>\n")
HARMONY = Template("<|start|>{role}<|message|>{text}<|end|>", "<|start|>assistant")
NAMES = Template("{role}: {text}\n", "assistant:")
DEEPSEEK = Template(
    "{role}{text}", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>",
    {"system": "", "user": "<｜User｜>", "assistant": "<｜Assistant｜>"},
)  # fmt: skip


def mistral(messages: Messages, *, gap: str = " ") -> str:
    return "<s>" + "".join(f"[INST]{gap}{one['content']}{gap}[/INST]" for one in messages)


def kinds(base: str, candidate: str) -> list[tuple[str, str]]:
    return sorted((one.kind, one.only) for one in compare_prompts([(base, candidate)]))


TOOLS = (
    "You are Qwen, a helpful assistant.\n\n# Tools\n\nYou may call one or more functions\n\n<tools>"
    '\n{"type": "function", "function": {"name": "weather"}}\n</tools>'
)
WITH_TOOLS: Messages = ({"role": "system", "content": TOOLS}, *USER)


def dated(day: str) -> Messages:
    said = f"Cutting Knowledge Date: December 2023\nToday Date: {day}"
    return ({"role": "system", "content": said}, *USER)


def gpt_oss(day: str) -> Messages:
    return ({"role": "system", "content": f"Current date: {day}\n\nReasoning: low"}, *USER)


# What somebody reported, base and candidate in our own words, and the kinds that say it.
REPORTS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "abetlen/llama-cpp-python#1501: the client adds BOS before the template's": (
        LLAMA3(USER), "<|begin_of_text|>" + LLAMA3(USER), [("double_bos", "candidate")],
    ),
    "sgl-project/sglang#888: a rendered text is encoded again": (
        "<s>" + mistral(USER), mistral(USER), [("double_bos", "base")],
    ),
    "utilityai/llama-cpp-rs#1096: 17 of 54 prompts lack BOS alone": (
        LLAMA3(USER), LLAMA3(USER).removeprefix("<|begin_of_text|>"), [("missing_bos", "base")],
    ),
    "utilityai/llama-cpp-rs#1096: no turn of zephyr's is closed": (
        ZEPHYR(USER), ZEPHYR(USER).replace("</s>", ""), [("turn_ends", "base")],
    ),
    "containers/ramalama#1855: a template that cannot be read becomes ChatML": (
        GEMMA(USER), CHATML(USER), [("missing_bos", "base"), ("role_marks", "")],
    ),
    "mudler/vllm.cpp#2077: a GGUF's template is not read, names of roles stand for it": (
        CHATML(USER), NAMES(USER), [("role_marks", "")],
    ),
    "EleutherAI/lm-evaluation-harness#2579: no template, though one was asked for": (
        CHATML(USER), USER[0]["content"], [("role_marks", "base")],
    ),
    "EleutherAI/lm-evaluation-harness#1841: the server renders what a model here reads": (
        json.dumps(USER), LLAMA3(USER), [("conversation", "base")],
    ),
    "InternLM/lmdeploy#3475: another default system prompt": (
        CHATML(SYSTEM),
        CHATML(({"role": "system", "content": "You are a helpful assistant."}, *USER)),
        [("system_prompt", "")],
    ),
    "NovaSky-AI/SkyThought#26: a template that adds a system prompt where none is given": (
        CHATML(USER), CHATML(SYSTEM), [("system_prompt", "candidate")],
    ),
    "oobabooga/textgen#5356: Mistral's template ignores the system prompt": (
        mistral([{"role": "user", "content": "Say the double.\n\n100"}]),
        mistral([{"role": "user", "content": "100"}]),
        [("text_before", "base")],
    ),
    "nobodywho-ooo/nobodywho#73: the system prompt goes into the first user's turn": (
        CHATML(SYSTEM),
        CHATML([{"role": "user", "content": f"{SYSTEM[0]['content']}\n\n{USER[0]['content']}"}]),
        [("system_place", "base")],
    ),
    "ggml-org/llama.cpp#27129: the server drops the tools": (
        CHATML(WITH_TOOLS), CHATML(SYSTEM), [("tools", "base")],
    ),
    "PrimeIntellect-ai/verifiers#538: enable_thinking is ignored": (
        CHATML(USER, tail="<think>\n\n</think>\n\n"), CHATML(USER), [("thinking", "")],
    ),
    "a template that opens the thinking part, and one that does not": (
        CHATML(USER, tail="<think>\n"), CHATML(USER), [("thinking", "")],
    ),
    "langgenius/dify#19051: /no_think in words": (
        CHATML(USER), CHATML([{**USER[0], "content": USER[0]["content"] + " /no_think"}]),
        [("thinking", "")],
    ),
    "sgl-project/sglang#3296: 26 Jul 2024 is the template's today": (
        LLAMA3(dated("26 Jul 2024")), LLAMA3(dated("04 Feb 2025")), [("date", "")],
    ),
    "ggml-org/llama.cpp#15110: another date, and 'reasoning' in small letters": (
        HARMONY(gpt_oss("2025-08-05")),
        HARMONY(gpt_oss("2025-08-06")).replace("Reasoning", "reasoning"),
        [("date", ""), ("system_prompt", "")],
    ),
    "ggml-org/llama.cpp#13398: a space between the marks of two versions of Mistral's": (
        mistral(USER), mistral(USER, gap=""), [("white_space", "")],
    ),
    "ggml-org/llama.cpp#6857: a blank for a new line after the marks of Phi": (
        PHI(USER), PHI(USER).replace("|>\n", "|> "), [("white_space", "")],
    ),
    "a new line too few at the end": (
        CHATML(USER), CHATML(USER).rstrip(), [("white_space", "")],
    ),
    "EleutherAI/lm-evaluation-harness#1873: examples as turns, or as one text": (
        CHATML(SHOTS), CHATML(ONE_TEXT), [("fewshot_turns", "base")],
    ),
    "add_generation_prompt is not given": (
        CHATML(USER), CHATML(USER, opened=False), [("generation_prompt", "base")],
    ),
    "a generation prompt that begins the answer, and one that does not": (
        HARMONY(USER), HARMONY(USER, tail="<|channel|>final<|message|>"),
        [("generation_prompt", "")],
    ),
    "ollama/ollama#17427: a long prompt loses its beginning": (
        CHATML(SHOTS), CHATML(SHOTS)[30:], [("cut_left", "candidate")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_what_was_reported_is_said_by_kind(report: str) -> None:
    base, candidate, expected = REPORTS[report]
    assert kinds(base, candidate) == expected


@pytest.mark.parametrize("report", REPORTS)
def test_either_side_may_be_the_base(report: str) -> None:
    base, candidate, expected = REPORTS[report]
    other = {"base": "candidate", "candidate": "base", "": ""}
    assert kinds(candidate, base) == sorted((kind, other[only]) for kind, only in expected)


def test_several_differences_are_all_said() -> None:
    base = LLAMA3(dated("26 Jul 2024"))
    candidate = "<|begin_of_text|>" + LLAMA3(dated("27 Jul 2024"), opened=False)
    assert kinds(base, candidate) == [
        ("date", ""),
        ("double_bos", "candidate"),
        ("generation_prompt", "base"),
    ]


def test_what_no_kind_explains_is_shown_where_it_begins() -> None:
    asked = [{"role": "user", "content": "How many pears are left?"}]
    (found,) = compare_prompts([(CHATML(USER), CHATML(asked))])
    assert (found.kind, found.only) == ("text", "")
    assert "apples" in found.base
    assert "pears" in found.candidate
    assert CHATML(USER)[found.at :].startswith("apples")


def test_a_known_difference_does_not_hide_another_question() -> None:
    asked = [{"role": "user", "content": "How many pears are left?"}]
    assert kinds(LLAMA3(USER), "<|begin_of_text|>" + LLAMA3(asked)) == [
        ("double_bos", "candidate"),
        ("text", ""),
    ]


def test_dates_of_the_documents_are_no_difference() -> None:
    asked = [{"role": "user", "content": "What was on 26 Jul 2024?"}]
    assert kinds(CHATML(asked), CHATML(asked, tail="<think>\n")) == [("thinking", "")]


def test_documents_are_counted_and_the_most_frequent_difference_comes_first() -> None:
    pairs = [
        (CHATML(USER), CHATML(USER)),
        (CHATML(USER), CHATML(USER, opened=False)),
        (CHATML(USER), CHATML(SYSTEM)),
        (CHATML(SHOTS), CHATML(SHOTS, opened=False)),
    ]
    found = compare_prompts(pairs)
    assert [(one.kind, one.documents) for one in found] == [
        ("generation_prompt", 2),
        ("system_prompt", 1),
    ]


@pytest.mark.parametrize("template", [CHATML, LLAMA3, GEMMA, PHI, ZEPHYR, HARMONY, NAMES, DEEPSEEK])
def test_a_prompt_is_taken_apart_by_the_marks_of_its_template(
    template: Callable[..., str],
) -> None:
    found = take_apart(template(SYSTEM))
    assert [(turn.role, turn.text.strip()) for turn in found.turns] == [
        ("system", SYSTEM[0]["content"]),
        ("user", USER[0]["content"]),
    ]
    assert found.opened


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
        ("<|start_of_role|>assistant<|end_of_role|>", ""),
        ("[INST]Why?[/INST][THINK]", "open"),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", ""),
    ],
)
def test_thinking_is_read_off_the_end_of_a_prompt(end: str, expected: str) -> None:
    assert thinking_of("<|im_start|>user\n" + end) == expected


@pytest.mark.parametrize(
    ("text", "base", "candidate", "expected"),
    [
        # deepseek-ai/DeepSeek-R1#151
        ("Hi", (151646, 151646, 7), (151646, 7), ("double_bos", "base", 0)),
        ("Hi", (7, 8), (1, 7, 8), ("missing_bos", "candidate", 0)),
        # ggml-org/llama.cpp#11264: marks are encoded as text
        ("<|im_start|>user", (100, 5), (27, 91, 318, 91, 5), ("special_as_text", "candidate", 1)),
        (
            "<|a|>x<|b|>y", (100, 5, 101, 6), (27, 9, 8, 5, 27, 9, 7, 6),
            ("special_as_text", "candidate", 2),
        ),
        # lm-sys/FastChat#3399: the first tokens are dropped
        ("a b c", (1, 2, 3, 4), (3, 4), ("cut_left", "candidate", 2)),
        ("a b c", (1, 2, 3, 4), (1, 2, 9, 4), ("tokens", "", 2)),
        # more tokens, and no mark in the text to explain them
        ("plain text", (100, 5), (27, 91, 318, 91, 5), ("tokens", "", 0)),
    ],
)  # fmt: skip
def test_one_text_as_other_token_ids(
    text: str,
    base: tuple[int, ...],
    candidate: tuple[int, ...],
    expected: tuple[str, str, int],
) -> None:
    found = compare_token_ids(text, base, candidate)
    assert found is not None
    assert (found.kind, found.only, found.at) == expected


def test_equal_ids_differ_in_nothing() -> None:
    assert compare_token_ids("Hi", (1, 2), [1, 2]) is None


PIECES = st.sampled_from(
    [
        "<s>", "<|im_start|>", "user\n", "<|im_end|>\n", "[INST]", "[/INST]", "<think>", "</think>",
        "26 Jul 2024", "# Tools\n", "<tools>", "Hi", " ", "\n", "[", '{"role": "user"}', "]",
        "Human: ",
    ]
)  # fmt: skip
PROMPTS = st.lists(PIECES, max_size=12).map("".join)


@given(PROMPTS, PROMPTS)
def test_texts_that_differ_always_differ_in_something(base: str, candidate: str) -> None:
    found = compare_prompts([(base, candidate)])
    assert bool(found) == (base != candidate)
    assert all(isinstance(one, PromptDifference) and one.documents == 1 for one in found)
