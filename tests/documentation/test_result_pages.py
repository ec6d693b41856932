"""Pages of results say with which version they were made; the documentation shows their figures.

And the limits that the code keeps to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from scipy.stats import binom, chi2

import evalguard
from evalguard.stats import clusters, dependence, scatter
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.few_documents import FEW_DOCUMENTS, FEW_SHARE
from evalguard.stats.power import fewest_signs
from evalguard.stats.scatter import carried_by_few, planned_churn, share_interval
from evalguard.stats.sign_flip import ENOUGH_UNITS

ROOT = Path(__file__).parent.parent.parent
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
CARD = "demo_card.md"  # what `evalguard card` wrote, and nothing beside


def test_the_figures_of_every_page_are_of_this_version() -> None:
    this = evalguard.__version__.partition(".dev")[0]
    pages = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    made = {
        name: re.findall(r"\bevalguard (\d+\.\d+\.\d+)", text)
        for name, text in pages.items()
        if name != CARD
    }
    assert [name for name, versions in made.items() if this not in versions] == []


Rows = dict[tuple[str, ...], list[list[str]]]
WORDS = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 9: "nine"}


def rows(page: Path, labels: int, under: str = "") -> Rows:
    """The figures of every cell of a page's tables, by its first cells; the first row of a name.

    Of the whole page, or of what stands under one of its headings.
    """
    found: Rows = {}
    text = page.read_text(encoding="utf-8")
    if under:
        text = text.partition(f"\n## {under}")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in ERROR.sub("", line).strip("|").split("|")]
            found.setdefault(tuple(cells[:labels]), [FIGURE.findall(c) for c in cells[labels:]])
    return found


def figures_of_pages() -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Tables of the documentation: the page, a row's first cell, and its figures in order."""
    skewed = rows(RESULTS / "skewed_gate.md", 2)
    for name in SKEWED:
        of = [skewed[SKEWED[name], n] for n in ("50", "200", "1,319", "5,153")]
        columns = (
            [plain[0] for plain, _ in of],
            [now[0] for _, now in of],
            [now[2] for _, now in of],
        )
        yield "calibration.md", (name,), [figure for column in columns for figure in column]
    dependent = rows(RESULTS / "dependence.md", 2)
    for name, row in DEPENDENT.items():
        few, middle, many = (dependent[row, n] for n in ("24", "50", "200"))
        cells = [middle[1], many[1], few[3], middle[3], many[3]]
        yield "calibration.md", (name,), [figure for (figure,) in cells]
    rules = rows(RESULTS / "gate_rules.md", 2)
    for metrics in ("1", "7", "50"):
        of = [rules[churn, metrics] for churn in ("5%", "10%", "15%")]
        yield "gate.md", (metrics,), [row[column][0] for column in (0, 1) for row in of]
    nights = rows(RESULTS / "change_points.md", 1)
    for name in NIGHTS:
        pairs = zip(nights[name,][0:3], nights[name,][6:9], strict=True)  # of 20 and 80 nights
        yield "nightly.md", (name,), [cell[0] for pair in pairs for cell in pair]
    needed = rows(RESULTS / "power.md", 2)
    for name, row in CONVERTED.items():
        _, (sigma, _), _, *numbers = needed[row, "int4"]
        yield "plan.md", (name, "int4"), [sigma, *(n for cell in numbers for n in cell[:3])]


SKEWED = {
    "normal": "normal",
    "exponential gains": "exponential gains",
    "lognormal(1) gains": "lognormal(1) gains",
    "lognormal(2) gains": "lognormal(2) gains",
    "noise, 2% gain 5 of its deviations": "noise, 2% gain 5 sd",
    "1% of the documents gain": "1% of the documents gain",
    "95% identical, lognormal(1) gains": "95% identical, lognormal(1) gains",
}
DEPENDENT = {
    "AR(0.6)": "AR(0.6) in document order",
    "AR(0.3)": "AR(0.3) in document order",
    "blocks of 3 that share 30%": "blocks of 3 share 30%",
    "blocks of 10 that share 10%": "blocks of 10 share 10%",
}
NIGHTS = (
    "independent", "autoregressive, 0.6", "autoregressive, 0.8", "documents shared for a week",
)  # fmt: skip
CONVERTED = {
    "demo, last word": "demo, evalguard_lastword",
    "stories260K, last word": "stories260K, stories_lastword",
}
FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
ERROR = re.compile(r" ?± ?[\d.]+")  # of Monte Carlo


def decimals(figure: str) -> int:
    return len(figure.partition(".")[2])


@pytest.mark.parametrize(
    ("page", "row", "expected"),
    [pytest.param(*of, id=f"{of[0]}: {of[1][0]}") for of in figures_of_pages()],
)
def test_tables_of_the_documentation_are_those_of_the_result_pages(
    page: str, row: tuple[str, ...], expected: list[str]
) -> None:
    cells = rows(DOCS / page, len(row))[row]
    shown = [figure for cell in cells for figure in cell]
    exact = [float(figure.replace(",", "")) for figure in expected]
    assert len(shown) == len(exact)
    for figure, of_page in zip(shown, exact, strict=True):
        assert abs(float(figure.replace(",", "")) - of_page) <= 0.5001 * 10.0 ** -decimals(figure)


def policies(page: Path, fails: int) -> Iterator[tuple[str, float, str]]:
    """Of the table of policies each one's name, its share of false alarms, and the last cell."""
    for line in page.read_text(encoding="utf-8").partition("| policy |")[2].splitlines()[2:]:
        if not line.startswith("| "):
            return
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield cells[0].partition(",")[0], float(FIGURE.findall(cells[fails])[0]), cells[-1]


def test_the_table_of_policies_is_that_of_its_result_page() -> None:
    shown, measured = policies(DOCS / "gate.md", 3), policies(RESULTS / "gate_policies.md", 2)
    pairs = [*zip(shown, measured, strict=True)]
    assert len(pairs) == 6
    for (name, fails, port), (of, exact, said) in pairs:
        assert (name, port) == (of, said)
        assert abs(fails - exact) <= (0.5 if fails >= 10.0 else 0.05) + 1e-9


def between(cells: Iterable[Sequence[str]], digits: int = 0) -> str:
    values = [float(figure) for (figure,) in cells]
    return f"{min(values):.{digits}f}% to {max(values):.{digits}f}%"


# The gate's promise: 2.5% within a fifth, where documents are no more skewed than these.
PROMISED = ("normal", "t, 3 df", "Laplace", "gamma(4) gains", "exponential gains",
            "lognormal(1) gains")  # fmt: skip
AT_MOST = 1.2 * 2.5


def fewest_that_hold(of: Rows) -> int:
    """The smallest number of documents from which on the gate's promise holds."""
    sizes = ("10", "30", "50", "200", "1,319", "5,153")
    broken = [n for n in sizes for name in PROMISED if float(of[name, n][1][0]) > AT_MOST]
    return int(sizes[sizes.index(broken[-1]) + 1])


def sentences_of_pages() -> Iterator[tuple[str, str]]:
    """What the documentation says of several rows of a page."""
    of = rows(RESULTS / "dependence.md", 2)
    sizes = ("200", "1,000")
    order = [of[name, n] for name in ("AR(0.6) in document order", "blocks of 3 share a difference")
             for n in sizes]  # fmt: skip
    blocks = [of[name, n] for name in ("blocks of 20", "blocks of 20, flips", "blocks of 100")
              for n in sizes]  # fmt: skip
    passages = [row for (name, n), row in of.items() if name.startswith("passages") and n in sizes
                and "10% shared" not in name]  # fmt: skip
    alone = [row for (name, _), row in of.items() if name.startswith("independent")]
    dependent = [*order, *blocks, *passages]
    together = [row[3] for row in dependent if row not in (of["blocks of 100", n] for n in sizes)]
    yield "calibration.md", f"{between(row[0] for row in order)} would be called really worse"
    yield "calibration.md", f"{between(row[0] for row in blocks)} with blocks of 20 and 100"
    yield "calibration.md", f"{between(row[0] for row in passages)} with passages of 5 or 10"
    yield "calibration.md", f"noticed in {between(row[1] for row in dependent)} of them"
    yield "calibration.md", f"{between((row[1] for row in alone), 1)} of independent ones"
    yield "calibration.md", f"{between(together, 1)} are called really worse"
    means = rows(RESULTS / "calibration.md", 3)
    for name, data in {
        "lognormal(1.5) losses": "a very long tail of losses (lognormal, 1.5)",
        "lognormal(1) gains": "a long tail of gains (lognormal, 1)",
    }.items():
        held = [means[data, n, "none"] for n in ("50", "200", "2,000")]
        careful, plain = ([float(row[column][0]) for row in held] for column in (0, 1))
        yield "calibration.md", f"{name} {careful[0]:.0f}%, {careful[1]:.0f}%, {careful[2]:.0f}%"
        yield "calibration.md", f"{plain[0]:.0f}%, {plain[1]:.0f}%, {plain[2]:.0f}%)"
    identical = [float(means["99% identical, the rest losses", n, "yes"][0][0])
                 for n in ("50", "200", "2,000")]  # fmt: skip
    yield "calibration.md", f"the rest lost {', '.join(f'{share:.0f}%' for share in identical)}"
    yield "calibration.md", f"of 50 documents {0.99**50:.0%} hold none of the lost ones"
    ends = between(cells[0][:1] for (name, _, drift), cells in means.items()
                   if name in ("normal", "heavy tails (t, 3 df)") and drift != "drift")  # fmt: skip
    yield "calibration.md", f"| means; normal or heavy-tailed differences | {ends} |"
    many, few = (float(of["blocks of 100", n][3][0]) for n in ("1,000", "200"))
    yield "calibration.md", f"few and long: {many}% of 1,000 documents, {few:.0f}% of 200"
    held = {
        name: [float(cells[0][0]) for cells in rows(RESULTS / "calibration.md", 3, name).values()
               if cells[0]]
        for name in ("groups", "unit")
    }  # fmt: skip
    texts = rows(RESULTS / "calibration.md", 3, "weighted_perplexity")
    usual = [
        *(rows(RESULTS / "calibration.md", 3, "perplexity").items()),
        *(rows(RESULTS / "calibration.md", 3, "bits_per_byte").items()),
        *texts.items(),
    ]
    like = ("normal", "heavy tails (t, 3 df)", "texts of 5 to 120 words")
    ends = between(cells[0][:1] for (name, *_), cells in usual if name in like)
    yield (
        "calibration.md",
        f"| perplexities, texts of 5 to 120 words; the same differences | {ends}",
    )
    low, high = min(held["groups"]), max(held["groups"])
    yield "calibration.md", f"| aggregates of eight subtasks | {low:.0f}% to {high:.0f}%"
    ends = between(cells[0][:1] for (name, *_), cells in texts.items() if "unequal" in name)
    yield "calibration.md", f"Very unequal texts {ends}"
    found = rows(RESULTS / "calibration.md", 3, "distribution")
    means = between(cells[0][:1] for (name, *_), cells in found.items() if "mean KL" in name)
    others = between(cells[0][:1] for (name, *_), cells in found.items()
                     if "percentile of KL" in name or "same top-1" in name)  # fmt: skip
    kinds = "mean KL; percentiles and shares of top tokens"
    yield "calibration.md", f"| {kinds} | {means}; {others} |"
    found = rows(RESULTS / "calibration.md", 3, "bootstrap")
    labels = between(cells[0][:1] for (name, *_), cells in found.items() if name in ("f1", "mcc"))
    totals = between(cells[0][:1] for (name, *_), cells in found.items() if "bleu" in name)
    kinds = "f1 and mcc; bleu-like, 200 resamples"
    yield "calibration.md", f"| {kinds} | {labels}; {totals} (caveat) |"
    found = rows(RESULTS / "calibration.md", 3, "clusters")
    giant = between(cells[0][:1] for (name, *_), cells in found.items() if "giant" in name)
    yield "calibration.md", f"A cluster with 30% of the documents {giant}"
    flips = rows(RESULTS / "calibration.md", 3, "0-1")
    ends = between(cells[0][:1] for (name, n, drift), cells in flips.items()
                   if name.endswith(", 0.5% flips") and (n, drift) == ("200", "yes"))  # fmt: skip
    yield "calibration.md", f"| 0/1 with one flip in 200 documents | {ends}"
    *one, _, middle, many = held["unit"]
    yield "calibration.md", f"held it in {middle:.0f}% at 200 documents, {many:.0f}% at 2,000"
    yield "calibration.md", f"(of sigma 1 in {one[1]:.0f}%, {one[2]:.0f}%)"
    skewed = rows(RESULTS / "skewed_gate.md", 2)
    least = fewest_that_hold(skewed)
    yield "README.md", f"at least {least} differ"
    yield "gate.md", f"at least {least} documents differ"
    yield "calibration.md", f"at least {least} documents differ"
    one, _, many = skewed["lognormal(1) gains", "30"][1]
    yield "calibration.md", f"of 30 it is {one}%, of 20 metrics {float(many):.0f}%"
    one, _, many = skewed["noise, 2% gain 5 sd", "50"][1]
    yield "gate.md", f"it is {float(one):.0f}% (of 20 metrics {float(many):.0f}%)"
    yield "README.md", f"it is {float(one):.0f}% to {float(many):.0f}%"
    nearest = rows(RESULTS / "skewed_gate.md", 2, "Nearest to the promise")
    del nearest["differences", "n"]
    alone, seven, twenty = (
        {n: max(float(row[1][k]) for (_, of), row in nearest.items() if of == n)
         for n in ("50", "60", "200")}
        for k in range(3)
    )  # fmt: skip
    assert max(alone.values()) <= AT_MOST
    yield "calibration.md", f"up to {seven['50']}% and {twenty['50']}% of 50 documents, {seven['60']}% and {twenty['60']}% of 60, {seven['200']}% and {twenty['200']}% of 200"  # fmt: skip # noqa: E501
    yield "gate.md", f"of 20 metrics of 50 documents with milder gains up to {twenty['50']}%"
    texts = rows(RESULTS / "skewed_gate.md", 3, "An unchanged candidate fails: texts and passages")
    one, _, many = map(float, texts["lognormal(1) gains", "texts of very unequal length", "200"][1])
    yield "calibration.md", f"with lognormal(1) gains it is {one}%, of 20 metrics {many:.0f}%"
    yield "gate.md", f"some of which gain much, {one:.0f}% (of 20 metrics {many:.0f}%)"
    yield "README.md", f"very unequal texts some of which gain much {one:.0f}% to {many:.0f}%"
    rare = [float(skewed["1% of the documents gain", n][1][0]) for n in ("50", "200")]
    yield "gate.md", f"{min(rare):.0f}% to {max(rare):.0f}%"
    for name, gains in {
        "lognormal(1)": "lognormal(1) gains fail in",
        "exponential": "with exponential ones in",
        "lognormal(2)": "with lognormal(2) in",
    }.items():
        few = [skewed[f"{name} gains", n] for n in ("8", "12", "16")]
        yield "statistics.md", f"{gains} {between(row[1] for row in few)}"

    planned = rows(RESULTS / "planned_power.md", 2)
    for name, how in {
        "normal": "8 to 130 with normal scatter show the *drift seen* in",
        "lognormal(1) gains": "with lognormal(1) gains in",
    }.items():
        seen = [planned[name, count][0] for count in ("8", "12", "20", "30", "60", "130")]
        yield "plan.md", f"{how} {between(seen)}"
    asked = rows(RESULTS / "planned_power.md", 4, "Answers: documents that decide")
    unlucky = asked.pop(("1 of 300 flip", "1.00%", "1%", "1"))[1]
    del asked["1 of 300 flip", "1.00%", "1%", "7"]
    decided = min(float(cells[1][0]) for cells in list(asked.values())[1:] if cells[1])
    yield "plan.md", f"{decided:.0f}% of runs or more are decided"
    yield "plan.md", f"where 1 of 300 flipped and 1% do, {unlucky[0]}% are decided"
    answers = rows(RESULTS / "planned_power.md", 3, "Answers: the drift that is seen")
    others = rows(RESULTS / "planned_power.md", 2, "Other documents")
    del others["differences", "documents"]
    tail = others.pop(("lognormal(1.5) gains", "64"))[0][0]
    shown = [cells[0] for cells in [*answers.values(), *others.values()] if cells[0][:1]]
    yield "plan.md", f"{between(shown)} show the *drift seen*"
    yield "plan.md", f"but for tails as long as lognormal(1.5), {tail}%"
    (held,) = others["noise, 2% gain 5 sd", "50"][2]
    yield "statistics.md", f"it holds in {held}%"
    said = rows(RESULTS / "skewed_gate.md", 3, "What is said to rest on few documents")
    (share, of) = said["95% identical, lognormal(1) gains", "200", "none"][0]
    yield "calibration.md", f"beside {round(float(share) * float(of) / 100.0)} of {of} unchanged"
    unseen = ("1% of the documents gain", "noise, 0.5% gain 15 sd", "noise, 2% gain 5 sd")
    few = [said[name, "50", "none"][0] for name in unseen]
    assert {share for share, _ in few} == {"0"}
    yield "calibration.md", f"(0 of {few[0][1]}, of {few[1][1]}, of {few[2][1]})"
    powers = rows(RESULTS / "skewed_gate.md", 2, "A drift is seen")
    (by_t, now, oracle) = [cell[0] for cell in powers["lognormal(1) gains", "50"]]
    yield "calibration.md", f"it finds {now}% where a test that knew them would find {oracle}%"
    (by_t, now, _) = [cell[0] for cell in powers["t, 3 df", "50"]]
    yield "calibration.md", f"long tails ({by_t}% to {now}%)"
    page = (RESULTS / "bisect_models.md").read_text(encoding="utf-8")
    (exact, cost) = re.findall(r"\*\*(\d+ of \d+)\*\*.*Mean cost ([\d.]+)", page)[0]
    yield "bisect.md", f"took {cost} and named exactly the culprits in [{exact}]"
    of_k = rows(RESULTS / "reference_file.md", 4)
    for k in ("16", "64", "256"):
        sizes = [int(row[0][0]) for key, row in of_k.items() if key[3] == k]
        yield "distributions.md", f"| {k} | {min(sizes):,} to {max(sizes):,} |"
    yield from sentences_of_kl()
    yield from sentences_of_gates_and_nights()
    yield from sentences_of_stopping()


def sentences_of_kl() -> Iterator[tuple[str, str]]:
    """How often the upper end of a mean KL is too low."""
    few, middle, many = (
        rows(RESULTS / "kl_interval.md", 1, f"{n} documents") for n in (50, 200, 1319)
    )
    longest = ("lognormal, spread 2.5",)
    usual = [key for key in few if key[0] != "KL of a document" and key != longest
             and "documents broken" not in key[0]]  # fmt: skip
    low = [float(of[key][0][0]) for of in (middle, many) for key in usual]
    yield "distributions.md", f"too low in {min(low):.0f}% to {max(low):.1f}% of samples of 200"
    low = [float(few[key][0][0]) for key in usual]
    yield "distributions.md", f"of 50 in {min(low):.0f}% to {max(low):.0f}%; of KL"
    at_worst = (f"{float(of[longest][0][0]):.0f}% of" for of in (few, middle))
    yield "distributions.md", f"as lognormal(2.5) in {' samples of 50 and '.join(at_worst)} 200"
    yield "distributions.md", f"of 50 documents {0.98**50:.0%} hold none of the 2% that are broken"
    yield "distributions.md", f"of 200 {0.99**200:.0%} none of 1%"


def sentences_of_gates_and_nights() -> Iterator[tuple[str, str]]:
    """What the gate's margins cost, how many documents z tests need, how soon a night tells."""
    answers = rows(RESULTS / "gate_table.md", 4, "Answers, margin 1pp")
    default, bolder, literal = (cell[0] for cell in answers["churn 15%", "1,319", "1", "2"][2:5])
    yield "gate.md", f"fails in {default}% of runs (`--confidence 0.90`: {bolder}%; `margin`: {literal}%)"  # fmt: skip # noqa: E501
    perplexities = rows(RESULTS / "gate_table.md", 4, "Perplexity")
    light = [row for (name, *_), row in perplexities.items() if name in ("ratio 1/4", "ratio 1/10")]
    assert {row[2][0] == row[4][0] for row in light} == {True}
    yield "gate.md", "perplexities whose paired error is a quarter of the base's or less nothing"
    needed = [row for (_, kind), row in rows(RESULTS / "power.md", 2).items() if kind == "int4"]
    unpaired, paired = ([float(row[k][0].replace(",", "")) for row in needed] for k in (3, 5))
    times = [one / other for one, other in zip(unpaired, paired, strict=True)]
    yield "verdict.md", f"[{min(times):.0f} to {max(times):.0f} times]"
    looks = rows(RESULTS / "nightly_looks.md", 1)
    alike = [f"nights that depend on each other, correlation {r}" for r in ("0.3", "0.6", "0.8")]
    low, middle, high, week = (looks[name,][0][0] for name in (*alike, "documents shared for a week"))  # fmt: skip # noqa: E501
    yield "nightly.md", f"{low}% where their correlation is 0.3, {middle}% at 0.6, {high}% at 0.8"
    yield "nightly.md", f"{week}% of documents shared for a week"
    steps = rows(RESULTS / "nightly_looks.md", 4, "A step")
    late, early = (
        [
            int(row[1][1])
            for (_, vary, first, _), row in steps.items()
            if (vary, first) == ("0.3", at)
        ]
        for at in ("31 of 60", "11 of 60")
    )
    yield "nightly.md", f"after {WORDS[min(late)]} to {WORDS[max(late)]} nights"
    yield "nightly.md", f"{WORDS[early[0]]} where only ten nights came before"


def sentences_of_stopping() -> Iterator[tuple[str, str]]:
    """How far early verdicts reach, and where they contradict those of all documents."""
    page = RESULTS / "stopping.md"
    of = {n: rows(page, 1, f"{n} documents") for n in ("500", "2,000", "5,000")}
    for table in of.values():
        del table["differences",]
    large = of["5,000"]
    answers = [row for (name,), row in large.items() if name.startswith("0/1")]
    both_ways = between([row[0][1]] for (name,), row in large.items() if "0/1" in name and "won:" in name)  # fmt: skip # noqa: E501
    least = large["normal, 0.03 of the base's",][0][1]
    yield "plan.md", f"needs {least}% where little differs ({both_ways} of answers that flip both"
    yield "plan.md", f"one of 5 sigma {between([row[5][1]] for row in answers)} where scores are 0"
    wrong = {
        kind: sorted(
            float(cell[0]) for table in of.values() for (name,), row in table.items()
            if name[0] != "*" and name.startswith("0/1") == (kind == "answers") for cell in row
        )
        for kind in ("answers", "likelihoods")
    }  # fmt: skip
    *usual, second, worst = wrong["likelihoods"]
    yield (
        "plan.md",
        f"stayed at 0% to {wrong['answers'][-1]}% for 0/1 metrics, 0% to {usual[-1]:.0f}%",
    )
    yield "plan.md", f"({second}% and {worst}% in two cells)"
    real = rows(page, 1, "Score tables of real runs")
    del real["run, task, metric",]
    most = max(float(row[2][0]) for row in real.values())
    yield "plan.md", f"in {len(real)} metrics of real runs at {most:.0f}% at most"
    few = {
        (n, share): [[cell[0]] for cell in of[n][f"*{share} losses, the rest identical*",][3:]]
        for n in ("500", "5,000") for share in ("0.5%", "0.2%")
    }  # fmt: skip
    carried, rare = few["5,000", "0.5%"], few["5,000", "0.2%"]
    single = [*few["500", "0.5%"], *few["500", "0.2%"]]
    assert len({one for (one,) in rare}) == 1
    yield (
        "plan.md",
        f"carry all of a drift above the margin a false pass came in {between(carried)}",
    )
    yield (
        "plan.md",
        f"of 10 of 5,000 in {float(rare[0][0]):.0f}%, of 1 or 2 of 500 in {between(single)}",
    )
    before = rows(page, 2, "Few documents that gain what all others lose")
    share = before["0.5% gain 30 nats, the rest lose", "1,500"][0][0]
    yield "plan.md", f"false in up to {share}% (0.5% gain 30 nats, 1,500 documents)"


@pytest.mark.parametrize(("page", "sentence"), [*sentences_of_pages()])
def test_sentences_of_the_documentation_have_the_figures_of_the_result_pages(
    page: str, sentence: str
) -> None:
    assert sentence in page_of(page).read_text(encoding="utf-8")


def page_of(name: str) -> Path:
    return (ROOT if name == "README.md" else DOCS) / name


def limits_of_code() -> Iterator[tuple[str, str]]:
    """From how many documents, clusters or flips on something is done, as pages say it."""
    of_clusters, real = clusters.FEWEST_FOR_T, fewest_signs(0.95)
    answers = next(lost for lost in range(1, 20) if mcnemar_mid_p(lost, 0) <= 0.025)
    carriers = next(few for few in range(1, 20) if not carried_by_few(100.0 / few, 100))
    rests = f"(at most {FEW_DOCUMENTS}, or {FEW_SHARE:.0%})"
    yield "calibration.md", rests
    yield "verdict.md", rests
    yield "calibration.md", f"fewer than {dependence.FEWEST} documents are not looked at"
    yield "calibration.md", f"{dependence.FEWEST_GROUPS} groups or more"
    yield "statistics.md", f"of {dependence.FEWEST} documents or more"
    yield "comparison.md", f"fewer than {ENOUGH_UNITS} documents differ"
    yield "comparison.md", f"below {of_clusters} passages their signs (below {real} the interval"
    yield "statistics.md", f"**Fewer than {of_clusters} clusters:**"
    yield "statistics.md", f"Where fewer than {ENOUGH_UNITS} units"
    yield "statistics.md", f"fewer than {real} differences"
    least = scatter.FEWEST_FOR_T
    yield "statistics.md", f"not said of fewer than {least} documents, or of {least} clusters"
    yield "verdict.md", f"Fewer than {real} documents that differ ({answers} answers)"
    yield "plan.md", f"where fewer than {WORDS[carriers]} documents carry the scatter"
    few, many = (binom.sf(math.floor(0.02 * n), n, 0.02) for n in (200, 1_319))
    surely = next(k for k in range(200) if share_interval(k, 200, confidence=0.95)[0] > 0.02)
    yield "generation.md", f"in {few:.0%} of runs of 200 documents and {many:.0%} of 1,319"
    yield "generation.md", f"in {binom.sf(surely - 1, 200, 0.02):.0%} under `fail_on: certain`"
    yield "generation.md", f"fails it in {1.0 - 0.999**1_319:.0%} of runs of 1,319"
    low, high = (63.0 / chi2(63).ppf(tail) - 1.0 for tail in (0.975, 0.025))
    yield "plan.md", f"for normal scatter {low:.0%} and {high:+.0%}"
    yield "plan.md", f"it is that of {planned_churn(0, 64):.1%} that flip"


@pytest.mark.parametrize(("page", "sentence"), [*limits_of_code()])
def test_limits_that_the_documentation_names_are_those_of_the_code(
    page: str, sentence: str
) -> None:
    assert sentence in page_of(page).read_text(encoding="utf-8")
