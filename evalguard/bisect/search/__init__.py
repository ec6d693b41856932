"""The search for culprits, and the proof. Pure: numpy, scipy, core and stats."""
