"""What a finished comparison gives to publish: a section of a model card, metadata, a badge."""
