"""Bisection over real models: an assignment of the settings in, scores of documents out."""
