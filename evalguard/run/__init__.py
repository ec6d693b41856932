"""What the commands do; ``compare.py`` is the main path."""
