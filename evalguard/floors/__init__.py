"""`evalguard floor`: what an unchanged model shows."""
