"""Bisection over the settings of real models: what is searched, how, and what comes of it."""
