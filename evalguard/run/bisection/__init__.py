"""From a drift to the settings that make it: subject, probes, search, repair."""
