"""Statistics of a drift between two runs over the same documents. numpy and scipy only."""
