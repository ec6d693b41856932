"""Modules of the base in the candidate's place: as settings of a search, and one at a time."""
