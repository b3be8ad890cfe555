"""What the service says of its predictors, over all ingresses, and who may go back to an earlier one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.errors import ApiError
from serve_app.settings import IngressSettings
from serve_app.tenants import ApiKeys
from tests.unit.test_ingress import KnownPeers, Remote, UnderTest


class Predictor:
    def __init__(self, version: int) -> None:
        self.version = version

    def status(self) -> dict[str, Any]:
        return {"version": self.version}

    async def rollback(self) -> int:
        if self.version == 1:
            raise LookupError
        self.version -= 1
        return self.version


def ingress_with(version: int, name: str, keys: dict[str, str], operators: frozenset[str]) -> Any:
    ingress: Any = object.__new__(UnderTest)
    ingress._settings = SimpleNamespace(ingress=IngressSettings(operators=operators))
    ingress._keys = ApiKeys(keys)
    ingress._predictor = Predictor(version)
    ingress._link = SimpleNamespace(ingress_id=name)
    ingress._peers = KnownPeers()
    return ingress


def ingresses(*versions: int, keys: dict[str, str] | None = None, operators: frozenset[str] = frozenset()) -> list[Any]:
    found = [ingress_with(version, f"i{number}", keys or {}, operators) for number, version in enumerate(versions)]
    found[0]._peers.known = [Remote(other) for other in found[1:]]
    return found


async def test_every_ingress_says_what_predicts_there() -> None:
    answer = json.loads((await ingresses(3, 1)[0]._http_predictor()).body)
    assert answer == {"data": [{"ingress": "i0", "version": 3}, {"ingress": "i1", "version": 1}]}


@pytest.mark.parametrize(("versions", "after"), [((3, 2), (2, 1)), ((1, 4), (1, 3)), ((2, 1), (1, 1))])
async def test_all_go_back_that_can(versions: tuple[int, int], after: tuple[int, int]) -> None:
    found = ingresses(*versions)
    statuses = await found[0].rollback_predictor()
    assert tuple(status["version"] for status in statuses) == after


async def test_where_none_can_it_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        await ingresses(1, 1)[0].rollback_predictor()
    assert refused.value.status == 409


async def test_where_keys_are_asked_for_only_operators_go_back() -> None:
    (ingress,) = ingresses(3, keys={"sha256:" + "0" * 64: "acme"}, operators=frozenset({"acme"}))
    for tenant in ("bolt", "default"):
        with pytest.raises(ApiError) as refused:
            await ingress._http_rollback(tenant)
        assert (refused.value.status, ingress._predictor.version) == (403, 3)
    assert (await ingress._http_rollback("acme")).status_code == 200
    assert ingress._predictor.version == 2


async def test_without_keys_anybody_may() -> None:
    (ingress,) = ingresses(3)
    assert (await ingress._http_rollback("default")).status_code == 200
