"""The fast scorer of Hugging Face models, held to lm-eval's own."""
