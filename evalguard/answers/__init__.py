"""Answers that models wrote: figures of each, and how those of two models differ."""
