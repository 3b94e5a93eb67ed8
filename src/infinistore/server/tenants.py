"""Tenants: whose tokens open which namespaces, read from a file.

[team-a]                # its namespaces are team-a/NAME; it asks for NAME
token = "..."
quota = "64GiB"         # left out: none
admin = true            # may use the admin port, for its own namespaces; left out: may not
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infinistore._compat import tomllib
from infinistore.config import TOKEN_BYTES_MAX, check_secret_file
from infinistore.errors import ConfigError
from infinistore.units import parse_bytes

TENANTS_MAX = 256  # every hello is compared with all of them
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEYS = ("token", "quota", "admin")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One table of the file. Without a name: who may see all."""

    name: str
    token: str = field(repr=False)
    quota_bytes: int = 0
    is_admin: bool = False
    reads_only: bool = False

    @property
    def sees_all(self) -> bool:
        return not self.name

    def whose(self, namespace: str | None) -> tuple[str | None, bool]:
        """The namespace that it means, and whether all that begin so are meant."""
        if self.sees_all:
            return namespace, False
        return (f"{self.name}/", True) if namespace is None else (f"{self.name}/{namespace}", False)


def identify(
    shown: str, token: str, tenants: Sequence[Tenant], read_token: str = ""
) -> Tenant | None:
    """Whose token it is; None: nobody's. Looks at all of them, however early one fits."""
    found = None
    if _is_equal(shown, token) if token else not (tenants or read_token):
        found = Tenant("", token, is_admin=True)
    if read_token and _is_equal(shown, read_token):
        found = Tenant("", read_token, is_admin=True, reads_only=True)
    for tenant in tenants:
        if _is_equal(shown, tenant.token):
            found = tenant
    return found


def _is_equal(shown: str, secret: str) -> bool:
    # A header may hold any bytes, which aiohttp hands on as surrogates.
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), secret.encode())


def read_tenants(file: str, *server_tokens: str) -> tuple[Tenant, ...]:
    """The tenants of a file; none without one. Raises `ConfigError`, which shows no token."""
    if not file:
        return ()
    path = Path(file)
    text = check_secret_file(path, "tenants_file")
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        # Not its message: it may quote the line, and with it a token.
        where = re.search(r"\(at line \d+, column \d+\)|\(at end of document\)", str(error))
        raise ConfigError(
            f"tenants_file {path} is not valid TOML {where[0] if where else ''}"
        ) from None
    if not 1 <= len(document) <= TENANTS_MAX:
        raise ConfigError(
            f"tenants_file {path} has {len(document)} tenants; give 1 to {TENANTS_MAX}, each a "
            "table like [team-a]"
        )
    tenants = tuple(_tenant(path, name, table) for name, table in document.items())
    tokens = [*server_tokens, *(tenant.token for tenant in tenants)]
    if len(set(tokens)) < len(tokens):
        raise ConfigError(f"tenants_file {path}: a token stands twice, or is the server's own")
    return tenants


def _tenant(path: Path, name: str, table: Any) -> Tenant:
    where = f"tenants_file {path}: [{name}]"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has 1 to 64 letters, digits, '.', '_' and '-'")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table with a token")
    if stray := sorted(set(table) - set(_KEYS)):
        raise ConfigError(f"{where}: no setting {stray[0]!r}; known: {', '.join(_KEYS)}")
    token, admin = table.get("token", ""), table.get("admin", False)
    if not isinstance(token, str) or not 1 <= len(token.encode()) <= TOKEN_BYTES_MAX:
        raise ConfigError(f"{where}: token must be a text of 1 to {TOKEN_BYTES_MAX} bytes")
    if not isinstance(admin, bool):
        raise ConfigError(f"{where}: admin must be true or false")
    return Tenant(name, token, _quota(where, table.get("quota", 0)), admin)


def _quota(where: str, raw: Any) -> int:
    try:
        quota = parse_bytes(raw) if isinstance(raw, str) else raw
    except ConfigError as error:
        raise ConfigError(f"{where}: quota: {error}") from error
    if not isinstance(quota, int) or isinstance(quota, bool) or quota < 0:
        raise ConfigError(f'{where}: quota = {raw!r} is no size; give one like "64GiB"')
    return quota
