"""Who hears of what: the ingresses, their mail, and which of them holds which application and call.

Laws: an action about a call goes to the ingress that introduced the call, one about an application to the ingress
that introduced it, or that goes on with it after that one has gone, and there goes the end of each of its calls too;
nobody else's mail grows. What an ingress that
was given up missed waits for it, should it come back, among the last `MAX_ABSENT`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cluster.mailbox import Mailbox
from scheduler.actions import Action, PublishAudit, PublishCallEnd, PublishCompletion, Reject
from scheduler.types import CallKey

MAX_ABSENT = 1_000


@dataclass(slots=True)
class Ingress:
    """What is known of one ingress: its mail, whom it can call, what it holds."""

    mailbox: Mailbox
    live_replicas: frozenset[str] = frozenset()
    sequence: int = 0
    applications: set[str] = field(default_factory=set)
    calls: set[CallKey] = field(default_factory=set)


class IngressRegister:
    """All ingresses of one scheduler. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.present: dict[str, Ingress] = {}
        self.absent: OrderedDict[str, Ingress] = OrderedDict()
        self.application_owners: dict[str, str] = {}
        self.earlier_owners: dict[str, set[str]] = {}
        self.call_owners: dict[CallKey, str] = {}

    def hear(self, ingress_id: str) -> Ingress:
        """The ingress that has just been heard; one that was given up comes back to the mail that it missed."""
        if ingress_id not in self.present:
            absent = self.absent.pop(ingress_id, None)
            self.present[ingress_id] = absent or Ingress(Mailbox(self._clock()))
        ingress = self.present[ingress_id]
        ingress.mailbox.last_seen_s = self._clock()
        return ingress

    def silent(self, patience_s: float) -> list[str]:
        """Present ingresses that were not heard for longer than this."""
        before_s = self._clock() - patience_s
        return [ingress_id for ingress_id, one in self.present.items() if one.mailbox.last_seen_s < before_s]

    def can_all_call(self, replica_id: str, view_age_s: float) -> bool:
        """Do all ingresses that were heard lately, and know any replica, know this one? False when none does."""
        since_s = self._clock() - view_age_s
        heard = [ingress for ingress in self.present.values() if ingress.mailbox.last_seen_s >= since_s]
        views = [ingress.live_replicas for ingress in heard if ingress.live_replicas]
        return bool(views) and all(replica_id in view for view in views)

    def own(self, ingress_id: str, introduced: Iterable[CallKey]) -> None:
        """Whoever introduces an application (a key without a call id) or a call hears of it.

        An open application whose ingress has gone goes to the one that goes on with it.
        """
        ingress = self.present[ingress_id]
        for key in introduced:
            if key.call_id:
                self.call_owners[key] = ingress_id
                ingress.calls.add(key)
            if not key.call_id or key.application_id not in self.application_owners:
                self.application_owners[key.application_id] = ingress_id
                self.earlier_owners.get(key.application_id, set()).discard(ingress_id)
                ingress.applications.add(key.application_id)

    def give_up(self, ingress_id: str, running_open: Iterable[str]) -> None:
        """An ingress is gone. Of open applications that still run it will hear no more than that they ended."""
        for application_id in running_open:
            self.application_owners.pop(application_id, None)
            self.earlier_owners.setdefault(application_id, set()).add(ingress_id)
        ingress = self.absent[ingress_id] = self.present.pop(ingress_id)
        ingress.calls.clear()
        ingress.applications.clear()
        while len(self.absent) > MAX_ABSENT:
            self.absent.popitem(last=False)

    # ---- mail

    def tell_application(self, application_id: str, action: Action) -> None:
        """To the ingress that holds the application."""
        self._put(self.application_owners.get(application_id), action)

    def tell_call(self, key: CallKey, action: Action) -> None:
        """To the ingress that holds the call, or else its application."""
        self._put(self.call_owners.get(key) or self.application_owners.get(key.application_id), action)

    def tell_rejection(self, action: Reject, introducer: str | None) -> None:
        """To the one who has just introduced it, who need not be the one who holds the application of that name."""
        if introducer is not None:
            self._put(introducer, action)
        elif action.call_id is None:
            self.tell_application(action.application_id, action)
        else:
            self.tell_call(CallKey(action.application_id, action.call_id), action)

    def tell_call_end(self, action: PublishCallEnd) -> None:
        """To the ingress that holds the call, which it then no longer does, and to that of its application."""
        key = CallKey(action.application_id, action.call_id)
        self.tell_call(key, action)
        owner = self.call_owners.pop(key, None)
        if owner not in (None, self.application_owners.get(key.application_id)):
            self.tell_application(key.application_id, action)
        if owner in self.present:
            self.present[owner].calls.discard(key)

    def tell_application_end(self, action: PublishCompletion | PublishAudit, runs_again: bool) -> None:
        """To all who hold the application or once did; `runs_again`: a later one of that name is in the system."""
        application_id = action.record.application_id
        self.tell_application(application_id, action)
        for ingress_id in self.earlier_owners.pop(application_id, ()):
            self._put(ingress_id, action)
        if runs_again:
            return
        owner = self.present.get(self.application_owners.get(application_id, ""))
        if owner is not None:
            owner.applications.discard(application_id)
        if isinstance(action, PublishAudit):
            self.application_owners.pop(application_id, None)

    def _put(self, ingress_id: str | None, action: Action) -> None:
        if ingress_id is None:
            return
        ingress = self.present.get(ingress_id) or self.absent.get(ingress_id)
        if ingress is not None:
            ingress.mailbox.put(action)
