"""Model types that need neither lm-eval nor evalguard's environment: one file a library."""
