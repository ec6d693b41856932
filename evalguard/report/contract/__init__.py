"""The JSON contract evalguard.compare/1: a report as a document, and read back."""
