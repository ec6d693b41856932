"""Sentences, labels and rounded numbers that all views share."""
