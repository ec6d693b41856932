"""What modules win back at the base's precision: one table on every page, the best buy in front."""

from __future__ import annotations

from dataclasses import replace

from example_bisections import PRICES, bisection, won
from example_reports import comparison, report

from evalguard.bisect.bisect_report import ModulePrice, ModulePrices, sort_prices
from evalguard.report.compare_document import compare_document
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import render_report

TITLE = "What modules win back at the base's precision"


def screen(prices: ModulePrices | None, *, width: int = 80, verbose: bool = True) -> list[str]:
    told = report(comparison(), bisect=bisection(prices=prices))
    return render_terminal(told, width=width, color=False, verbose=verbose).split("\n")


def test_the_table_has_what_each_row_costs_and_wins_with_its_interval() -> None:
    lines = screen(PRICES)
    at = lines.index(TITLE)
    assert lines[at + 1 : at + 18] == [
        "The candidate has a mean KL of 0.119 nats and +1.61 sigma of lambada_openai",
        "perplexity on 2,048 of 5,153 documents. Each row takes its modules from the base",
        "and leaves all others quantised: rows overlap, and what they win back does not",
        "add up. Intervals are 95%, paired, each for itself; p has Holm's correction over",
        "4 rows, and those told from none come first. All of it took 1.6 full",
        "evaluations.",
        "restored                    adds                      KL back   per MB      p",
        "self_attn.k_proj (all 5)   35 kB      0.0182 [0.0122, 0.0242]    0.518  4e-08",
        "model.layers.2            118 kB      0.0235 [0.0155, 0.0315]    0.199  3e-07",
        "lm_head                   131 kB  0.00020 [-0.00080, 0.00120]  0.00153   0.70",
        "mlp.gate_proj (all 5)     189 kB                 not measured        -      -",
        "To keep self_attn.k_proj (all 5):",
        "  --tensor-type attn_k=f32",
        "To keep model.layers.2:",
        "  --tensor-type 'blk.2[.]=f32'",
        "mlp.gate_proj (all 5): has other shapes",
        "",
    ]


def test_the_first_screen_names_the_best_buy_and_its_option() -> None:
    text = " ".join(" ".join(screen(PRICES, verbose=False)).split())
    assert (
        "Best buy: self_attn.k_proj (all 5) at the base's precision wins back 0.018 of 0.12 nats "
        "of KL for 35 kB: --tensor-type attn_k=f32"
    ) in text
    nothing = replace(PRICES, rows=PRICES.rows[2:])
    assert "Best buy" not in " ".join(screen(nothing, verbose=False))
    assert TITLE not in "\n".join(screen(None))


def test_every_page_has_the_table_and_the_options() -> None:
    told = report(comparison(), bisect=bisection(prices=PRICES))
    page = render_report(told, "html")
    markdown = render_report(told, "markdown").replace("\\", "")
    for text in (page, markdown):
        assert "self_attn.k_proj (all 5)" in text
        assert "0.0182 [0.0122, 0.0242]" in text
    assert "0.24 [-0.11, 0.59]" in page  # in sigma, where there is room
    assert "--tensor-type attn_k=f32" in markdown
    assert "attn_k=f32" in page


def test_the_document_has_the_numbers() -> None:
    told = compare_document(report(comparison(), bisect=bisection(prices=PRICES)))
    prices = told["bisect"]["prices"]
    assert (prices["kl"], prices["drift"], prices["unit"]) == (0.1187, 1.61, "sigma")
    first = prices["rows"][0]
    assert first["added_bytes"] == 35_200
    assert first["kl"]["amount"] == 0.01823
    assert first["per_megabyte"] == 0.01823 / 35_200 * 1e6
    assert first["option"] == "--tensor-type attn_k=f32"
    assert compare_document(report(comparison(), bisect=bisection()))["bisect"]["prices"] is None


def row(name: str, amount: float, adjusted_p: float, added: int | None = 10**6) -> ModulePrice:
    return ModulePrice(
        name=name, modules=(name,), added_bytes=added, kl=won(amount, 0.1, adjusted_p)
    )


def test_rows_are_sorted_by_what_a_megabyte_buys_and_noise_of_a_small_module_comes_after() -> None:
    rows = [
        row("large", 0.5, 1e-9, 10**7), row("small", 0.3, 1e-9, 10**6),
        row("noise", 0.1, 0.4, 10), ModulePrice(name="unknown", modules=("unknown",)),
    ]  # fmt: skip
    assert [one.name for one in sort_prices(rows, 0.025)] == ["small", "large", "noise", "unknown"]


def test_where_one_cost_is_unknown_rows_are_sorted_by_what_they_win() -> None:
    rows = [row("small", 0.3, 1e-9), row("large", 0.5, 1e-9, None)]
    found = sort_prices(rows, 0.025)
    assert [one.name for one in found] == ["large", "small"]
    assert found[0].per_megabyte is None
    assert "?" in " ".join(screen(replace(PRICES, rows=found)))
