"""All pairs of the guard files in one night, each in a process of its own."""
