"""The documentation site: what is generated for it when it is built."""
