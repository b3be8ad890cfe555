"""`justitia policies`: the scheduling policies there are."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scheduler.cost import COSTS
from scheduler.policies import POLICIES
from scheduler.policies.contract import Policy
from serve_app.cli import http


def policies(
    name: Annotated[str | None, typer.Argument(help="Show this one, with its algorithm.")] = None,
    as_json: http.JsonOption = False,
) -> None:
    """List the scheduling policies: what each does, what it needs to know, and where it was published.

    Example: justitia policies justitia
    """
    if name is not None and name not in POLICIES:
        http.complain(f"No policy {name!r}; known: {', '.join(sorted(POLICIES))}")
        raise typer.Exit(http.REFUSED)
    if name is not None:
        _show(POLICIES[name], as_json)
    elif as_json:
        http.print_json([_row(policy) for _, policy in sorted(POLICIES.items())])
    else:
        Console().print(_table([policy for _, policy in sorted(POLICIES.items())]))


def _show(policy: type[Policy], as_json: bool) -> None:
    row = {**_row(policy), "algorithm": _algorithm(policy)}
    if as_json:
        http.print_json(row)
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(policy.name)}[/bold]: {escape(policy.summary)}")
    console.print(f"[dim]paper[/dim]    {escape(policy.paper)}")
    console.print(f"[dim]needs[/dim]    {', '.join(policy.needs) or '-'}")
    console.print(f"[dim]options[/dim]  {escape(_options_in_words(policy)) or '-'}")
    console.print()
    console.print(escape(_algorithm(policy)), soft_wrap=True)


def _table(listed: list[type[Policy]]) -> Table:
    """Two narrow columns whose words never break and two that take the rest: it can be read at 80 columns."""
    table = Table(caption="justitia policies NAME shows the algorithm.", pad_edge=False, expand=True)
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does", ratio=3, overflow="fold")
    table.add_column("needs", no_wrap=True)
    table.add_column("paper", ratio=2, overflow="fold")
    for policy in listed:
        table.add_row(policy.name, escape(policy.summary), "\n".join(policy.needs) or "-", escape(policy.paper))
    return table


def _row(policy: type[Policy]) -> dict[str, object]:
    return {
        "name": policy.name,
        "summary": policy.summary,
        "needs": list(policy.needs),
        "paper": policy.paper,
        "options": _options(policy),
        "shares_among_flows": policy.shares_among_flows,
    }


def _options(policy: type[Policy]) -> dict[str, object]:
    """The options that a policy takes with their defaults; a cost function stands there by its name."""
    cost_names = {cost: cost_name for cost_name, cost in COSTS.items()}
    defaults = {name: parameter.default for name, parameter in inspect.signature(policy).parameters.items()}
    return {name: cost_names[default] if callable(default) else default for name, default in defaults.items()}


def _options_in_words(policy: type[Policy]) -> str:
    return ", ".join(f"{name} = {default}" for name, default in _options(policy).items())


def _algorithm(policy: type[Policy]) -> str:
    """The docstring of the policy's file."""
    return inspect.getdoc(inspect.getmodule(policy)) or ""
