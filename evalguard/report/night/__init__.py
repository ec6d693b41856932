"""A night of comparisons, for people and programs."""
