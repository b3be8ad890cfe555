"""A DSPy program: a question is answered three times, and the answers are joined into one.

DSPy asks through LiteLLM, which sends the headers that it is given. `WholeText` takes a model's whole answer as the
one field of a signature, so that small models, which keep to no format, can be used too.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import typer

from serve_app.client import DEFAULT_URL, AsyncJustitia

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # read when DSPy is imported: no prices are fetched
import dspy

QUESTION = "Why do lighthouses have different patterns of light?"


class WholeText(dspy.ChatAdapter):  # type: ignore[misc] # DSPy has no types
    """Reads an answer as it is; for signatures with one output field."""

    def parse(self, signature: Any, completion: str) -> dict[str, str]:
        (field,) = signature.output_fields
        return {field: completion.strip()}


class Panel(dspy.Module):  # type: ignore[misc]
    """Three answers at a time, then one that joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question, number -> answer")
        self.join = dspy.Predict("question, answers: list[str] -> summary")

    async def aforward(self, question: str) -> Any:
        numbers = ("first", "second", "third")
        drafts = await asyncio.gather(*(self.answer.acall(question=question, number=number) for number in numbers))
        return await self.join.acall(question=question, answers=[draft.answer for draft in drafts])


async def run(url: str, api_key: str | None = None, question: str = QUESTION) -> str:
    """The summary of three answers."""
    async with AsyncJustitia(url, api_key) as client, client.application("panel") as app:
        settings = app.openai_settings()
        model = dspy.LM(
            f"openai/{await client.model_name()}",
            api_base=settings["base_url"],
            api_key=settings["api_key"],
            extra_headers=settings["default_headers"],
            max_tokens=60,
            cache=False,
        )
        with dspy.context(lm=model, adapter=WholeText()):
            joined = await Panel().acall(question=question)
    return str(joined.summary)


def main(url: Annotated[str, typer.Option(envvar="JUSTITIA_URL")] = DEFAULT_URL) -> None:
    typer.echo(asyncio.run(run(url)))


if __name__ == "__main__":
    typer.run(main)
