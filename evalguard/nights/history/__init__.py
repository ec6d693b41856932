"""The history: one SQLite file of runs over nights."""
