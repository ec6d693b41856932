"""From models to score tables: loading, the score cache, lockstep, references."""
