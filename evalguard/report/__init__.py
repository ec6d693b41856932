"""Reports render a finished CompareReport; they compute no statistic and decide nothing."""
