"""`evalguard nightly` and `history`: all pairs of a guard file, and what became of them."""
