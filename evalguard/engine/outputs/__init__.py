"""Two folders of what models put out, as the sides of a comparison."""
