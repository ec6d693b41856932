"""The main script of a text is that of most of its letters, where there are enough of them."""

from __future__ import annotations

import pytest

from evalguard.answers.languages import count_scripts, is_other_script, main_script


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("The bridge was closed on Monday.", "LATIN"),
        ("Die Straße führt über 12 Brücken – naïve façade.", "LATIN"),
        ("Мост закрыли в понедельник.", "CYRILLIC"),
        ("Η γέφυρα έκλεισε τη Δευτέρα.", "GREEK"),
        ("أُغلق الجسر يوم الاثنين.", "ARABIC"),
        ("הגשר נסגר ביום שני בגלל שיטפון.", "HEBREW"),
        ("สะพานปิดเมื่อวันจันทร์เพราะน้ำท่วม", "THAI"),
        ("बाढ़ के कारण पुल सोमवार को बंद रहा।", "DEVANAGARI"),
        ("桥因为洪水在星期一关闭了。", "HAN"),
        ("橋は洪水のため月曜日に閉鎖された。", "JAPANESE"),
        ("東京特許許可局長が許可した。", "JAPANESE"),
        ("ソフトウェアテスト", "JAPANESE"),
        ("다리는 홍수 때문에 월요일에 폐쇄되었다.", "HANGUL"),
        ("大韓民國의 憲法은 1948년에 制定되었다.", "HANGUL"),
        ("def f(x):\n    return {'key': x + 1}  # 返す", "LATIN"),
    ],
)
def test_a_text_has_the_script_of_most_of_its_letters(text: str, script: str) -> None:
    assert main_script(text) == script


@pytest.mark.parametrize(
    "text",
    ["", "42", "3.14159 + 2 = 5.14159", "x = 1", "!!! ??? ...", "🙂🙂🙂", "∑∫√≤≥∞", "Yes",
     "Мост закрыли в пять. The bridge was shut."],
)  # fmt: skip
def test_few_letters_or_two_scripts_by_halves_tell_nothing(text: str) -> None:
    assert main_script(text) is None


def test_letters_of_mathematics_and_signs_are_of_no_script() -> None:
    assert count_scripts("𝐴𝑏ℝℵ µ 12 + *") == {}
    assert count_scripts("ＡＢ ｱｲ") == {"LATIN": 2, "KATAKANA": 2}


def test_an_answer_goes_over_to_another_script_or_it_does_not_or_nobody_knows() -> None:
    english, russian = "The bridge was closed on Monday.", "Мост закрыли в понедельник."
    assert is_other_script(english, russian) is True
    assert is_other_script(english, "Heat flows from warm to cold.") is False
    assert is_other_script(english, "42") is None
    assert is_other_script("42", russian) is None
