"""Verdicts before all documents are scored, at a level that holds for every look."""
