"""The view: a comparison as rounded, harmless texts that every page only lays out."""

from evalguard.report.view.bisection import (
    BisectionView,
    CulpritView,
    FixView,
    ProbeView,
    SearchView,
)
from evalguard.report.view.build import report_view
from evalguard.report.view.caveats import Caveat
from evalguard.report.view.distribution import DistributionView
from evalguard.report.view.influence import InfluenceView, WorstDocument
from evalguard.report.view.metric import MetricView, Plot, TaskView
from evalguard.report.view.report import LimitView, ReportView
from evalguard.report.view.side import SettingView, SideView

__all__ = [
    "BisectionView",
    "Caveat",
    "CulpritView",
    "DistributionView",
    "FixView",
    "InfluenceView",
    "LimitView",
    "MetricView",
    "Plot",
    "ProbeView",
    "ReportView",
    "SearchView",
    "SettingView",
    "SideView",
    "TaskView",
    "WorstDocument",
    "report_view",
]
