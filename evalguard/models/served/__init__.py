"""Models behind a server: what is asked, what its answers must show, and what is kept."""
