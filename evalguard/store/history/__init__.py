"""The history file: an sqlite3 database of nights."""

from evalguard.store.history.failures import DamagedHistoryError
from evalguard.store.history.history_check import check_history
from evalguard.store.history.history_export import export_history
from evalguard.store.history.history_file import HistoryFile, KeptMetric
from evalguard.store.history.history_prune import remove_runs

__all__ = [
    "DamagedHistoryError",
    "HistoryFile",
    "KeptMetric",
    "check_history",
    "export_history",
    "remove_runs",
]
