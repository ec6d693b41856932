"""lm-eval: its tasks, requests, answers and metrics."""
