"""Map and reduce with OpenAI's own package: three summaries at a time, then one of them all, streamed.

What makes it one application for the service is a header; nothing else differs from any other use of the package.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Sequence
from typing import Annotated

import typer
from openai import AsyncOpenAI

from serve_app.client import DEFAULT_URL

CHAPTERS = (
    "The lamp was lit at dusk, and the keeper wrote down the hour as he had each evening for nine years.",
    "A ship lay off the reef with its anchor lost; twice its signal lights went up, and twice they went out.",
    "By morning the wind had turned. Eleven people came up the stairs, and the keeper made coffee for them all.",
)


async def run(url: str, api_key: str | None = None, chapters: Sequence[str] = CHAPTERS) -> str:
    """A summary of the chapters, printed as it comes."""
    headers = {"X-Application-Id": f"summary-{uuid.uuid4().hex[:12]}", "X-Application-Type": "summary"}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key or "unused", default_headers=headers) as client:
        model = (await client.models.list()).data[0].id
        parts = await asyncio.gather(*(summarize(client, model, chapter) for chapter in chapters))
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell this story in one sentence:\n" + "\n".join(parts)}],
            max_tokens=60,
            stream=True,
            extra_headers={"X-Stage": "reduce"},
        )
        text = ""
        async for chunk in stream:
            piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            text += piece
            sys.stdout.write(piece)
    sys.stdout.write("\n")
    return text


async def summarize(client: AsyncOpenAI, model: str, chapter: str) -> str:
    """One chapter in a few words."""
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Summarize in a few words: {chapter}"}],
        max_tokens=40,
        extra_headers={"X-Stage": "map"},
    )
    return answer.choices[0].message.content or ""


def main(url: Annotated[str, typer.Option(envvar="JUSTITIA_URL")] = DEFAULT_URL) -> None:
    asyncio.run(run(url))


if __name__ == "__main__":
    typer.run(main)
