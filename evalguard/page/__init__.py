"""How anything is laid out: terminal, Markdown, HTML, charts, rounding. It knows no model."""
