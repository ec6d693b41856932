"""What a model computes inside: its hyper-parameters, and the tensors at its modules."""
