"""`evalguard trace`: where in a model error begins."""
