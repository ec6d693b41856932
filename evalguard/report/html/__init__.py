"""Pages: self-contained HTML files that load nothing and run no script but their own."""
