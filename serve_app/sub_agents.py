"""Sub-agents: names that stand for the application of whoever started them.

Laws.
1. A sub-agent's calls are its root's: parents are followed until a name has none. A name of which nothing is known is
   a root.
2. The first parent that a name is given stays; one that would make it its own ancestor is not taken, nor one that
   would put it more than `MAX_DEPTH` parents below its root.
3. At most `max_names` of a tenant are known; of more the one that was unused for longest is forgotten, and is a root
   until it is given a parent again.
4. All ingresses hear of a name's parent before its first call goes on, but for those that are started later: the call
   that names it may end early, they hear of it all the same, and calls that come meanwhile wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from serve_app.inference_request import InferenceRequest
from serve_app.peers import Peers
from serve_app.tenants import bare_id, scoped_id

TypeOf = Callable[[str], str | None]

MAX_NAMES = 100_000
MAX_DEPTH = 64


class SubAgents:
    """Who is whose, by ids of the service's own, so that tenants never meet."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._parents_by_tenant: dict[str, OrderedDict[str, str]] = {}

    def root(self, application_id: str) -> str:
        """The application whose calls this name's are; parents beyond `MAX_DEPTH` are not followed."""
        return self.line(application_id)[-1]

    def line(self, application_id: str) -> list[str]:
        """The name, its parent, the parent's parent and so on, at most `MAX_DEPTH` of them."""
        parents = self._parents(application_id)
        line = [application_id]
        while len(line) <= MAX_DEPTH and (parent := parents.get(line[-1])) is not None:
            parents.move_to_end(line[-1])
            line.append(parent)
        return line

    def learn(self, application_id: str, parent_id: str) -> bool:
        """`application_id` was started by `parent_id`; returns whether that is news."""
        parents = self._parents(application_id)
        line = self.line(parent_id)
        if application_id in parents or application_id in line or len(line) > MAX_DEPTH:
            return False
        parents[application_id] = parent_id
        self._parents_by_tenant[_tenant_part(application_id)] = parents
        while len(parents) > self._max_names:
            parents.popitem(last=False)
        return True

    def _parents(self, application_id: str) -> OrderedDict[str, str]:
        """Of its tenant's names; nothing is kept for a tenant without any."""
        return self._parents_by_tenant.get(_tenant_part(application_id), OrderedDict())


def _tenant_part(scoped: str) -> str:
    return scoped.rpartition("/")[0]


class Families:
    """Sub-agents and their roots, as one ingress and its peers know them.

    `type_of` gives the type that an application was begun with, by its id inside the service, where that is known.
    """

    def __init__(self, peers: Peers, type_of: TypeOf) -> None:
        self.known = SubAgents()
        self._peers = peers
        self._type_of = type_of
        self._telling: dict[str, asyncio.Task[None]] = {}

    async def in_its_root(self, request: InferenceRequest, tenant: str) -> InferenceRequest:
        """The request with the name and the stated type of the application that it belongs to, if it names any."""
        hints = request.hints
        named = hints.application_id or hints.parent_id
        if named is None:
            return request
        root = await self.root_of(named, hints.parent_id, tenant)
        kind = hints.application_type or self._type_of(scoped_id(tenant, root))
        return replace(request, hints=replace(hints, application_id=root, application_type=kind))

    async def root_of(self, application_id: str, parent_id: str | None, tenant: str) -> str:
        """The application (by its tenant's id) whose calls are those of this one with this parent, if it has one."""
        scoped = scoped_id(tenant, application_id)
        if parent_id is not None and self.known.learn(scoped, scoped_id(tenant, parent_id)):
            self._tell(scoped, self._peers.learn_sub_agent(application_id, parent_id, tenant))
        for name in self.known.line(scoped) if self._telling else ():
            if (telling := self._telling.get(name)) is not None:
                await asyncio.shield(telling)
        return bare_id(self.known.root(scoped))

    def _tell(self, scoped: str, telling: Coroutine[Any, Any, None]) -> None:
        """Have the peers told, whatever becomes of the call that named it."""
        self._telling[scoped] = task = asyncio.create_task(telling)
        task.add_done_callback(lambda _: self._told(scoped, task))

    def _told(self, scoped: str, task: asyncio.Task[None]) -> None:
        if self._telling.get(scoped) is task:  # a name that was forgotten meanwhile may have been learnt again
            del self._telling[scoped]
