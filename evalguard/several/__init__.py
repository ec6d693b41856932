"""Several candidates of one base: a chain, a ladder, a model card."""
