"""Finished lm-eval runs (made with ``--log_samples``) as ScoreTables; no model is run."""

from evalguard.lmeval_runs.environment import environment_differences
from evalguard.lmeval_runs.files import is_lmeval_run
from evalguard.lmeval_runs.run import StoredRun, read_run

__all__ = ["StoredRun", "environment_differences", "is_lmeval_run", "read_run"]
