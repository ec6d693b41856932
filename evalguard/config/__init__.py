"""Guard files: found, validated and turned into variants, pairs, tasks and gate options."""
