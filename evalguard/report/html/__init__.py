"""Self-contained HTML pages that load nothing and run no script but their own."""
