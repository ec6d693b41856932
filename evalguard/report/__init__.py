"""Views of finished records: terminal, HTML, Markdown, JSON. They decide nothing."""
