"""Runs kept over nights: which file, what is read of it, what is added and removed."""
