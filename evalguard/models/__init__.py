"""Everything that answers requests. torch and lm_eval are imported when a model is loaded."""
