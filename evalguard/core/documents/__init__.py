"""Single documents: their log-likelihoods, those that are broken, metrics of any selection."""
