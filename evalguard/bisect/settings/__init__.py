"""Which settings a search may change: of configurations, weights and modules."""
