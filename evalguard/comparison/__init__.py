"""The main path: two sides, paired, compared, checked, judged and written."""
