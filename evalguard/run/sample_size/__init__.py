"""How many documents: plans, pilots, and runs that stop early."""
