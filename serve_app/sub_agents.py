"""Sub-agents: names that stand for the application of whoever started them.

Laws.
1. A sub-agent's calls are its root's: parents are followed until a name has none. A name of which nothing is known is
   a root.
2. The first parent that a name is given stays; one that would make it its own ancestor is not taken.
3. At most `max_names` of a tenant are known; of more the one that was unused for longest is forgotten, and is a root
   until it is given a parent again.
4. All ingresses hear of a name's parent before its first call goes on, but for those that are started later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

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
        parents = self._parents(application_id)
        for _ in range(MAX_DEPTH):
            parent = parents.get(application_id)
            if parent is None:
                break
            parents.move_to_end(application_id)
            application_id = parent
        return application_id

    def learn(self, application_id: str, parent_id: str) -> bool:
        """`application_id` was started by `parent_id`; returns whether that is news."""
        parents = self._parents(application_id)
        if application_id in parents or self.root(parent_id) == application_id:
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
            await self._peers.learn_sub_agent(application_id, parent_id, tenant)
        return bare_id(self.known.root(scoped))
