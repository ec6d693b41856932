"""Histories: nights are kept in them, and asked about."""
