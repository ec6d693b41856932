"""`evalguard tensors`: two sets of stored tensors compared."""
