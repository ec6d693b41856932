"""Language models behind lm-eval's interface, and the Scorer that asks them.

Nothing here is imported before a model is loaded: torch and lm_eval stay out until then.
"""
