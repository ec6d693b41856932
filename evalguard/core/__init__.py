"""Records and rules of the field: settings, scores, pairing, verdict, gate. No files, no clock."""
