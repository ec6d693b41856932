"""From loaded models to score tables: the score cache, lockstep, references."""
