"""A finished bisection as plain data for the reports; one noun a module."""

from evalguard.bisect_report.guilty_setting import SIGMA, GuiltySetting
from evalguard.bisect_report.loads import Loads
from evalguard.bisect_report.measured import Measured, UntestableAssignment
from evalguard.bisect_report.metric_search import Ended, MetricSearch
from evalguard.bisect_report.repaired import Recommended, Repaired, RepairedMetric
from evalguard.bisect_report.report import BisectReport

__all__ = [
    "SIGMA",
    "BisectReport",
    "Ended",
    "GuiltySetting",
    "Loads",
    "Measured",
    "MetricSearch",
    "Recommended",
    "Repaired",
    "RepairedMetric",
    "UntestableAssignment",
]
