"""The guard file names it; no test runs it."""
