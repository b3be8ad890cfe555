"""The paper's figures and tables as experiments by name, each a function from a `Laboratory` to `Findings`.

Justitia (Yang et al., arXiv:2510.17015). Table III, which needs a clock of its own, is measured by the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.sim.experiments.admissions import admissions
from scheduler.sim.experiments.clocks import clocks
from scheduler.sim.experiments.completion_times import figure_8, figure_10, figure_12
from scheduler.sim.experiments.elephant import figure_11
from scheduler.sim.experiments.held_out import held_out
from scheduler.sim.experiments.laboratory import Experiment
from scheduler.sim.experiments.predictions import table_2
from scheduler.sim.experiments.two_applications import figure_1, figure_3
from scheduler.sim.experiments.worked_queue import figure_7

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("fig1", "two applications side by side, and one after the other", figure_1),
        Experiment("fig3", "the same with two document-merging applications, and the memory they hold", figure_3),
        Experiment("fig7", "the worked queue: fair finishes, order of starts, marks", figure_7),
        Experiment("fig8", "completion times of all baselines at 1×, 2× and 3×", figure_8),
        Experiment("fig10", "each application's time over its time under VTC", figure_10),
        Experiment("fig11", "an elephant and mice: one tenant, clock rates, two tenants", figure_11),
        Experiment("fig12", "costs in tokens instead of memory", figure_12),
        Experiment("table2", "predictors: their errors, and what those cost", table_2),
        Experiment("held_out", "the trained order on other workloads of the kind", held_out),
        Experiment("clock", "what moves virtual time", clocks),
        Experiment("admission", "admission by the engine, and by projected peak", admissions),
    )
}
