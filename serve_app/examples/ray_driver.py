"""Ray programs: a driver submits a whole application, an actor runs an open one, both over the Serve handle.

No HTTP is involved. The handle's operations are the methods of `serve_app.ingress.Ingress` without an underscore.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import typer

os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported
import ray
from ray import serve

SERVICE = "justitia"
CHAT = "/v1/chat/completions"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 40, **fields}


async def drive() -> list[str]:
    """A DAG from this process: two drafts, then the better one of them."""
    handle = serve.get_app_handle(SERVICE)
    drafts = [{"name": f"draft{number}", **chat(f"Draft {number} of a haiku on rain.")} for number in (1, 2)]
    choice = {"name": "choice", "after": ["draft1", "draft2"], **chat("Choose one:\n{{draft1}}\n\n{{draft2}}")}
    status = await handle.submit_application.remote({"application_type": "haiku", "calls": [*drafts, choice]})
    async for event in handle.options(stream=True).application_events.remote(status["application_id"]):
        if event["event"] == "application_ended":
            break
    ended = await handle.get_application.remote(status["application_id"])
    return [call["outputs"][0] for call in ended["calls"]]


@ray.remote(num_cpus=0)
class Poet:
    """An actor whose calls come one by one: each line is asked for when the one before is there."""

    async def write(self, lines: int) -> list[str]:
        handle = serve.get_app_handle(SERVICE)
        begun = await handle.submit_application.remote({"open": True, "application_type": "poem", "weight": 2.0})
        names = {"application_id": begun["application_id"], "stage": "line"}
        poem = ["Rain on the harbour"]
        try:
            for _ in range(lines):
                answer = await handle.infer.remote(CHAT, chat("Go on:\n" + "\n".join(poem), **names))
                poem.append(answer["choices"][0]["message"]["content"])
        finally:
            await handle.close_application.remote(begun["application_id"])
        return poem


async def run() -> tuple[list[str], list[str]]:
    """What the driver's calls and the actor's calls have answered."""
    poet = Poet.remote()  # type: ignore[attr-defined] # Ray has put it there
    try:
        return await drive(), await poet.write.remote(2)
    finally:
        ray.kill(poet)


def main(address: str = "auto") -> None:
    ray.init(address=address)
    haiku, poem = asyncio.run(run())
    typer.echo("\n".join([*haiku, "", *poem]))


if __name__ == "__main__":
    typer.run(main)
