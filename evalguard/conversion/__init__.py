"""Settings applied to a model, and read back; builds of models."""
