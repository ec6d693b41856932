"""Activations of torch models: recorded by hooks, forced into another model, and compared."""
