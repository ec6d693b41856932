"""A comparison as rounded, harmless texts that every page only lays out."""
