"""Nights: every pair of a guard file, one after the other, whatever happens to any of them."""
