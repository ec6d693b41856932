"""Conversions that evalguard brings: each is a ``call:`` of a model's ``build:``."""
