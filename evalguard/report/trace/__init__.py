"""A finished trace: its words, its page for a terminal, and the JSON contract."""
