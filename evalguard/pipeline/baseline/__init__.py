"""Baselines: a base whose scores were kept, in place of its model."""
