"""`justitia policies`: the scheduling policies there are."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from scheduler.policies import POLICIES
from serve_app.cli import http


def policies(as_json: http.JsonOption = False) -> None:
    """List the scheduling policies: what each does, what it needs to know, and where it was published.

    Example: justitia policies --json
    """
    rows = [
        {"name": name, "summary": policy.summary, "needs": list(policy.needs), "paper": policy.paper}
        for name, policy in sorted(POLICIES.items())
    ]
    if as_json:
        http.print_json(rows)
        return
    table = Table("policy", "what it does", "needs", "paper")
    for row in rows:
        table.add_row(str(row["name"]), str(row["summary"]), ", ".join(row["needs"]) or "-", str(row["paper"]))
    Console().print(table)
