"""What `evalguard trace` does: two models, the documents that they read, the trace, its report."""
