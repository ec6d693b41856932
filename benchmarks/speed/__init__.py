"""How fast evalguard is beside lm-eval's own command: ``python -m benchmarks.speed``."""
