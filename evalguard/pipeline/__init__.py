"""The pipeline: joins guard files, models, tasks, statistics and reports into commands."""
