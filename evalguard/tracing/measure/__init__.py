"""Activations recorded and forced, floors of benign twins, suspects. It runs where a model is."""
