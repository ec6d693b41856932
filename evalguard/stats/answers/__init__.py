"""What two models answered: the same, one of several right, cut, or not found by a filter."""
