"""What flows in a runtime, under the names of a Hugging Face model: seen, and replaced."""
