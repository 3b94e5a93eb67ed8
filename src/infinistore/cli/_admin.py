"""A running server's admin port, as the commands see it."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import click

from infinistore.config import ServerConfig, load, read_token
from infinistore.errors import (
    AuthError,
    ConfigError,
    ConnectError,
    InfiniStoreError,
    ProtocolError,
    StoreError,
)

CONNECT_TIMEOUT_S = 1.0
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Admin:
    """One server's admin address, and the token to show there."""

    host: str
    port: int
    token: str = ""
    is_https: bool = False

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
    ) -> Any:
        """The JSON answer. Raises `ConnectError`, `AuthError`, `StoreError` or `ProtocolError`."""
        with self._asked(method, path, query, body) as answer:
            status, body = answer.status, answer.read()
        return self._read(status, body)

    def stream(
        self, method: str, path: str, query: Mapping[str, str | None]
    ) -> Generator[dict[str, Any], None, None]:
        """The lines of JSON of an answer that goes on; closing it ends what the server does."""
        with self._asked(method, path, query) as answer:
            if answer.status != 200:
                self._read(answer.status, answer.read())
            while line := answer.readline():
                progress = json.loads(line)
                assert isinstance(progress, dict)
                yield progress

    @contextlib.contextmanager
    def _asked(
        self, method: str, path: str, query: Mapping[str, str | None] | None, body: Any = None
    ) -> Iterator[http.client.HTTPResponse]:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        content = None if body is None else json.dumps(body).encode()
        kind = http.client.HTTPSConnection if self.is_https else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(TIMEOUT_S)
            connection.request(method, target, body=content, headers=headers)
            yield connection.getresponse()
        except InfiniStoreError:
            raise
        except http.client.IncompleteRead as error:
            raise ConnectError(f"{self} ended in the middle of its answer") from error
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(
                f"the certificate of {self} is not trusted ({error.verify_message}); give its "
                "name, --admin https://NAME:PORT, and who signed it, SSL_CERT_FILE=ca.pem"
            ) from error
        except ssl.SSLError as error:
            raise ConnectError(
                f"{self} does not speak HTTPS ({error.reason}); give --admin HOST:PORT"
            ) from error
        except (OSError, UnicodeError) as error:
            raise ConnectError(
                f"no server answers at {self} ({error}); "
                "start one with `infinistore`, or give --admin HOST:PORT"
            ) from error
        except (http.client.HTTPException, ValueError) as error:
            raise ProtocolError(f"what listens at {self} is no InfiniStore: {error!r}") from error
        finally:
            connection.close()

    def _read(self, status: int, body: bytes) -> Any:
        try:
            answer = json.loads(body)
        except ValueError as error:
            text = f"what listens at {self} is no InfiniStore (HTTP {status})"
            raise ProtocolError(text) from error
        if status == 401:
            raise AuthError(f"{self} wants its token; set INFINISTORE_TOKEN or --token-file")
        if status not in (200, 503):  # 503 is the health of a draining server
            reason = answer.get("error", answer) if isinstance(answer, dict) else answer
            raise StoreError(f"{self} refused: {reason}")
        return answer

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def find_admin(address: str | None, token_file: str | None) -> Admin:
    """From the flags, else from the settings that the server itself would read."""
    config = load(ServerConfig, {"token_file": token_file, "token": "" if token_file else None})
    host, port = config.admin_host or config.host, config.admin_port
    is_https = bool(config.tls_cert_file)
    if address:
        is_https = address.startswith("https://")
        rest = address.removeprefix("http://").removeprefix("https://").rstrip("/")
        before, colon, digits = rest.rpartition(":")
        host = before.strip("[]")
        if not colon or not host or not digits.isdigit() or int(digits) > 65535:
            raise ConfigError(f"--admin = {address!r} is not HOST:PORT, like 127.0.0.1:18080")
        port = int(digits)
    return Admin(_reachable(host), port, read_token(config), is_https)


def _reachable(host: str) -> str:
    """A wildcard is where a server listens, not where one calls."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --admin, --token-file and --json."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--token-file", metavar="FILE", help="File with the server's token."),
        click.option("--admin", "address", metavar="HOST:PORT", help="The server's admin port."),
    ):
        command = option(command)
    return command


def print_json(answer: Any) -> None:
    click.echo(json.dumps(answer, indent=2))
