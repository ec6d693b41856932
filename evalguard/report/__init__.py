"""Views of finished records: terminal, HTML, Markdown, JSON, JUnit. They decide nothing."""
