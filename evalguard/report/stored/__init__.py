"""A stored document of the contract, read back into the report that it was made of."""

from evalguard.report.stored.reading import read_report

__all__ = ["read_report"]
