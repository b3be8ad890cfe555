"""One ingress's mail: in order, numbered, kept until it has arrived."""

import asyncio
import time

from cluster.mailbox import Mailbox
from scheduler.actions import Abort


def mail(number: int) -> Abort:
    return Abort("r", str(number))


async def test_mail_waits_for_its_reader_in_order() -> None:
    box = Mailbox(0.0)
    for number in range(3):
        box.put(mail(number))
    assert await box.collect(0, 0.0) == ((mail(0), mail(1), mail(2)), 3)


async def test_a_reply_that_was_lost_is_given_again_and_one_that_arrived_is_dropped() -> None:
    box = Mailbox(0.0)
    box.put(mail(0))
    box.put(mail(1))
    assert await box.collect(0, 0.0) == await box.collect(0, 0.0)
    assert await box.collect(1, 0.0) == ((mail(1),), 2)
    assert await box.collect(2, 0.0) == ((), 2)
    box.put(mail(2))
    assert await box.collect(2, 0.0) == ((mail(2),), 3)


async def test_a_waiting_reader_is_woken_by_the_first_piece() -> None:
    box = Mailbox(0.0)
    reader = asyncio.create_task(box.collect(0, 30.0))
    await asyncio.sleep(0)
    box.put(mail(0))
    assert await asyncio.wait_for(reader, 10.0) == ((mail(0),), 1)


async def test_an_empty_mailbox_is_waited_for_no_longer_than_asked() -> None:
    begin_s = time.monotonic()
    assert await Mailbox(0.0).collect(0, 0.05) == ((), 0)
    assert 0.04 <= time.monotonic() - begin_s < 10.0
