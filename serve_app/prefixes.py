"""How a prompt begins: hashes that policies of prefix locality compare.

A prompt's text is cut into blocks of `BLOCK_CHARS` characters; each hash covers its block and all before it, so that
two prompts whose first k hashes are equal begin alike for k blocks. Hashes only: no text leaves the ingress. Several
prompts in one request are described by the first, images and other parts without text by nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from serve_app.chat_messages import message_texts
from serve_app.inference_request import InferenceRequest

BLOCK_CHARS = 256
"""About 64 tokens of English."""
HASH_BYTES = 6


def prefix_hashes(request: InferenceRequest, most_blocks: int) -> tuple[int, ...]:
    """Hashes of the leading whole blocks, at most `most_blocks` of them; O(most_blocks)."""
    digest = blake2b(digest_size=HASH_BYTES)
    hashes = []
    for block in _blocks(_pieces(request), most_blocks):
        digest.update(block.encode())
        hashes.append(int.from_bytes(digest.digest()))
    return tuple(hashes)


def _pieces(request: InferenceRequest) -> Iterable[str]:
    """The text of the prompt in order; what separates roles counts, so that equal texts of other roles differ."""
    if not request.is_chat:
        first = request.prompts[0]
        yield first if isinstance(first, str) else " ".join(map(str, first))
        return
    for message in request.messages:
        yield f"\x00{message.get('role')}\x00"
        yield from (text for _, text in message_texts([dict(message)]))


def _blocks(pieces: Iterable[str], most_blocks: int) -> Iterable[str]:
    buffer = ""
    made = 0
    for piece in pieces:
        buffer += piece[: (most_blocks - made) * BLOCK_CHARS]
        while len(buffer) >= BLOCK_CHARS and made < most_blocks:
            yield buffer[:BLOCK_CHARS]
            buffer = buffer[BLOCK_CHARS:]
            made += 1
        if made == most_blocks:
            return
