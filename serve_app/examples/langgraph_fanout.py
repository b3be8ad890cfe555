"""A LangGraph that fans out: each topic is a branch of its own, and their texts are joined at the end.

The model is LangChain's own for OpenAI, with the application's name in its headers.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, TypedDict

import typer
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from serve_app.client import DEFAULT_URL, AsyncApplication, AsyncJustitia

TOPICS = ("its light", "its keeper", "its storms", "its end")


class Essay(TypedDict):
    """The state: what is to be written about, the parts so far, and the whole."""

    topics: list[str]
    parts: Annotated[list[str], operator.add]
    text: str


async def run(url: str, api_key: str | None = None, topics: tuple[str, ...] = TOPICS) -> str:
    """An essay on a lighthouse, a part for each topic."""
    async with AsyncJustitia(url, api_key) as client, client.application("essay") as app:
        graph = essay_graph(app, await client.model_name())
        end = await graph.ainvoke({"topics": list(topics), "parts": [], "text": ""})
    return str(end["text"])


def essay_graph(app: AsyncApplication, model_name: str):  # type: ignore[no-untyped-def] # LangGraph's types are its own
    """START → one `write` for each topic → `join` → END."""
    model = ChatOpenAI(model=model_name, max_tokens=60, **app.openai_settings())

    async def write(branch: dict[str, str]) -> dict[str, list[str]]:
        answer = await model.ainvoke(f"One paragraph on a lighthouse and {branch['topic']}.")
        return {"parts": [str(answer.content)]}

    async def join(essay: Essay) -> dict[str, str]:
        answer = await model.ainvoke("Join these paragraphs:\n\n" + "\n\n".join(essay["parts"]))
        return {"text": str(answer.content)}

    def branches(essay: Essay) -> list[Send]:
        return [Send("write", {"topic": topic}) for topic in essay["topics"]]

    graph = StateGraph(Essay)
    graph.add_node("write", write)
    graph.add_node("join", join)
    graph.add_conditional_edges(START, branches, ["write"])
    graph.add_edge("write", "join")
    graph.add_edge("join", END)
    return graph.compile()


def main(url: Annotated[str, typer.Option(envvar="JUSTITIA_URL")] = DEFAULT_URL) -> None:
    typer.echo(asyncio.run(run(url)))


if __name__ == "__main__":
    typer.run(main)
