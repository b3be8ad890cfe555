"""Events of one application, for any number of readers."""

import asyncio
from typing import Any

from serve_app.application_events import EventStream


async def numbers(stream: EventStream, after: int = 0) -> list[int]:
    return [event["id"] async for event in stream.follow(after)]


async def test_readers_get_every_event_once_whenever_they_come() -> None:
    stream = EventStream()
    readers = [asyncio.create_task(numbers(stream))]
    for number in range(1, 6):
        stream.add("happened", what=number)
        readers.append(asyncio.create_task(numbers(stream)))
        if number % 2:
            await asyncio.sleep(0)
    stream.close()
    readers.append(asyncio.create_task(numbers(stream)))
    assert await asyncio.wait_for(asyncio.gather(*readers), 10) == [[1, 2, 3, 4, 5]] * 7


async def test_a_reader_resumes_after_the_event_it_has_seen() -> None:
    stream = EventStream()
    for _ in range(4):
        stream.add("happened")
    stream.close()
    assert await numbers(stream, 2) == [3, 4]
    assert await numbers(stream, -5) == [1, 2, 3, 4]
    assert await numbers(stream, 99) == []


async def test_a_slow_reader_misses_nothing_that_comes_while_it_is_busy() -> None:
    stream = EventStream()
    seen: list[Any] = []

    async def read() -> None:
        async for event in stream.follow():
            seen.append(event["what"])
            await asyncio.sleep(0.001)

    reader = asyncio.create_task(read())
    for number in range(20):
        stream.add("happened", what=number)
        await asyncio.sleep(0.0004)
    stream.close()
    await asyncio.wait_for(reader, 10)
    assert seen == list(range(20))


async def test_an_event_has_its_name_its_fields_and_its_time() -> None:
    stream = EventStream()
    stream.add("tag_set", tag=3.5)
    stream.close()
    (event,) = [event async for event in stream.follow()]
    assert (event["id"], event["event"], event["tag"]) == (1, "tag_set", 3.5)
    assert event["time_s"] > 1e9


async def test_a_bounded_stream_keeps_the_last_events_and_their_numbers() -> None:
    stream = EventStream(max_kept=3)
    for _ in range(10):
        stream.add("happened")
    stream.close()
    assert await numbers(stream) == [8, 9, 10]
    assert await numbers(stream, after=8) == [9, 10]
    assert await numbers(stream, after=99) == []
