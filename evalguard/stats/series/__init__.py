"""What follows each other: documents in their order, nights, and how alike neighbours are."""
