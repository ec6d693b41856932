"""The noise floor: what an unchanged model shows."""
