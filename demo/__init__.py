"""The embedded default model of evalguard: its corpus, its training and its tasks."""
