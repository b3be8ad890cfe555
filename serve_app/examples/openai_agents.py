"""Agents of the OpenAI Agents SDK: two advisers at a time, then one that weighs what they said.

All of them speak through a client that is bound to one application, so that the service sees one run, not three calls.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner

from serve_app.client import DEFAULT_URL, AsyncJustitia

QUESTION = "Should a small library lend out tools as well as books?"
ADVISERS = {"optimist": "Argue for it, in two sentences.", "sceptic": "Argue against it, in two sentences."}


async def run(url: str, api_key: str | None = None, question: str = QUESTION) -> str:
    """What the judge says after it has heard both advisers."""
    async with AsyncJustitia(url, api_key) as client, client.application("debate") as app, app.openai() as openai:
        model = OpenAIChatCompletionsModel(model=await client.model_name(), openai_client=openai)
        advisers = [agent(name, duty, model) for name, duty in ADVISERS.items()]
        opinions = await asyncio.gather(*(ask(adviser, question) for adviser in advisers))
        judge = agent("judge", "Weigh both opinions, and decide in one sentence.", model)
        return await ask(judge, "\n\n".join([question, *opinions]))


def agent(name: str, duty: str, model: OpenAIChatCompletionsModel) -> Agent[None]:
    return Agent(name=name, instructions=duty, model=model, model_settings=ModelSettings(max_tokens=60))


async def ask(who: Agent[None], what: str) -> str:
    """One run of an agent; nothing is reported to anybody else."""
    result = await Runner.run(who, what, run_config=RunConfig(tracing_disabled=True))
    return str(result.final_output)


def main(url: Annotated[str, typer.Option(envvar="JUSTITIA_URL")] = DEFAULT_URL) -> None:
    typer.echo(asyncio.run(run(url)))


if __name__ == "__main__":
    typer.run(main)
