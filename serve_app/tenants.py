"""Tenants: whose a request is, and what an application is called outside and inside.

Laws.
1. A request's tenant follows from its API key and from nothing else in it. Where no key is configured, everybody is
   the tenant `default`; where one is, a request without a known key has no tenant (401).
2. Of a key only its SHA-256 digest is kept, and only digests are compared. No message, log line or event holds a key,
   nor a tenant's name as it was configured wrongly: the two may have been put the wrong way round. Traffic that names
   no application is told apart by a short hash of the digest, in an id of the service's own.
3. Inside the service an application of a tenant other than `default` is called `TENANT/ID`. Neither part can hold a
   slash, so ids of two tenants never meet. Clients give and are shown the bare id.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.telemetry import log_event
from serve_app.errors import ApiError, invalid

logger = logging.getLogger("ray.serve")

DEFAULT_TENANT = "default"
TENANT_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
KEY_PATTERN = r"[\x21-\x7e]{1,512}"
DIGEST_PATTERN = r"sha256:[0-9a-f]{64}"

Stamp = tuple[int, int, int]


# ---- what an application is called


def scoped_id(tenant: str, bare: str) -> str:
    """What the service calls a tenant's application. Raises ApiError 400 for what is no tenant's name."""
    if re.fullmatch(TENANT_PATTERN, tenant) is None:
        raise invalid("tenant", f"tenant must match {TENANT_PATTERN}")
    return bare if tenant == DEFAULT_TENANT else f"{tenant}/{bare}"


def bare_id(scoped: str) -> str:
    """What its tenant calls an application."""
    return scoped.rpartition("/")[2]


def in_tenants_words(text: str, scoped: str) -> str:
    """What the service says about an application, as its tenant may read it."""
    return text.replace(scoped, bare_id(scoped))


def key_group(authorization: str | None) -> str:
    """A short name for "the same key as before", from an `Authorization` header; empty without one.

    It is made of the key's digest by another hash, so that it is no part of what keys are compared by.
    """
    key = (authorization or "").strip().partition(" ")[2].strip()
    return hashlib.sha256(f"group:{_digest(key)}".encode()).hexdigest()[:12] if key else ""


# ---- whose a key is


class ApiKeys:
    """The tenant of each key, from the settings and from a file that is read again when it changes.

    Raises ValueError for a file that cannot be read, or is not as `read_key_file` wants it.
    """

    def __init__(self, keys: Mapping[str, str], file: Path | None = None) -> None:
        self._configured = dict(keys)
        self._file = file
        self._stamp = self._stamp_of_file()
        self._tenants = self._read()

    @property
    def required(self) -> bool:
        """Must a request have a key?"""
        return bool(self._configured) or self._file is not None

    def tenant(self, authorization: str | None) -> str:
        """Whose a request with this `Authorization` header is. Raises ApiError 401."""
        if not self.required:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorized("give an API key in the header Authorization: Bearer KEY")
        tenant = self._tenants.get(_digest(key.strip()))
        if tenant is None:
            raise _unauthorized("this API key is not known")
        return tenant

    def refresh(self) -> None:
        """Read the file again if it has changed. One that is wrong is logged, and the keys stay as they were."""
        stamp = self._stamp_of_file()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tenants = self._read()
        except ValueError as error:
            log_event(logger, "api_keys_not_read", reason=str(error))
        else:
            log_event(logger, "api_keys_read", keys=len(self._tenants))

    def _read(self) -> dict[str, str]:
        keys = {} if self._file is None else read_key_file(self._file)
        if any(keys.get(key, tenant) != tenant for key, tenant in self._configured.items()):
            raise ValueError(f"{self._file}: a key of another tenant in api_keys stands here too")
        return {**keys, **self._configured}

    def _stamp_of_file(self) -> Stamp | None:
        """Changes when the file is written, replaced or taken away."""
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_key_file(path: Path) -> dict[str, str]:
    """The tenants in a JSON file, by the digests of their keys. Raises ValueError, without any of its content."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise ValueError(f"cannot read the API keys in {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    keys = digested_keys(document, str(path))
    if not keys:
        raise ValueError(f"{path} has no API key")
    return keys


def digested_keys(keys: Any, source: str) -> dict[str, str]:
    """`{key: tenant}` as `{digest: tenant}`; a key may be its digest already, as `sha256:` and 64 hexadecimal digits.

    Raises ValueError naming `source` and the number of the entry at fault.
    """
    if not isinstance(keys, Mapping):
        raise ValueError(f"{source} must be an object: API keys and the tenants that they belong to")
    digested: dict[str, str] = {}
    for number, (key, tenant) in enumerate(keys.items(), 1):
        if not isinstance(key, str) or re.fullmatch(KEY_PATTERN, key) is None:
            raise ValueError(f"{source}: key {number} must be 1 to 512 visible ASCII characters")
        if not isinstance(tenant, str) or re.fullmatch(TENANT_PATTERN, tenant) is None:
            raise ValueError(f"{source}: the tenant of key {number} must match {TENANT_PATTERN}")
        digest = key if re.fullmatch(DIGEST_PATTERN, key) else _digest(key)
        if digest in digested:
            raise ValueError(f"{source}: key {number} stands there twice")
        digested[digest] = tenant
    return digested


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError("one key stands there twice")
    return keys


def _digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message)
