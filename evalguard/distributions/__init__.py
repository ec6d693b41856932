"""Next-token distributions: from rows to KL, and to one comparison a task; references."""
