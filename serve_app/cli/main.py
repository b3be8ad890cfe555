"""`justitia`: the list of its commands. Each is in a file of its own."""

from __future__ import annotations

import typer

from serve_app.cli.agents import agent, agents
from serve_app.cli.bench import bench
from serve_app.cli.calibrate import calibrate
from serve_app.cli.cancel import cancel
from serve_app.cli.demo import demo
from serve_app.cli.evaluate import evaluate
from serve_app.cli.explain import explain
from serve_app.cli.models import models
from serve_app.cli.policies import policies
from serve_app.cli.record import record
from serve_app.cli.replay import replay
from serve_app.cli.reproduce import reproduce
from serve_app.cli.serve import serve
from serve_app.cli.simulate import simulate
from serve_app.cli.status import status
from serve_app.cli.submit import submit
from serve_app.cli.train import train
from serve_app.cli.workload import workload

app = typer.Typer(
    name="justitia",
    help="One fair, fast queue for LLM applications on a cluster of vLLM replicas.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
for command in (
    demo,
    serve,
    submit,
    status,
    explain,
    cancel,
    agent,
    agents,
    policies,
    simulate,
    reproduce,
    replay,
    record,
    calibrate,
    train,
    evaluate,
):
    app.command()(command)
app.add_typer(bench, name="bench")
app.add_typer(workload, name="workload")
app.add_typer(models, name="models")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
