"""What may be wrong with a comparison although every score is there: one file a check."""
