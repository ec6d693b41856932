"""What is on disk: run folders, the score cache, floors, references."""
