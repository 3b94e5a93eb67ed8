"""The certificate of admin and data port: read at the start, and again when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable

from infinistore.config import ServerConfig
from infinistore.errors import ConfigError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Certificate:
    """What new connections are greeted with; those that are there keep theirs."""

    def __init__(self, chain: str, key: str) -> None:
        """Raises `ConfigError` if the files cannot be read or do not belong together."""
        self._files = (chain, key)
        self._seen = self._state()
        try:
            self.context = self._read()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"tls_cert_file {chain} and tls_key_file {key} are no certificate and its key: "
                f"{error.strerror or error if isinstance(error, OSError) else error}"
            ) from error

    def reload_if_changed(self, reload_data_port: Callable[[], str] = lambda: "") -> bool:
        """Whether there was something new. What cannot be used is logged, and the old one stays.

        `reload_data_port` answers why its own stays, or an empty text.
        """
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self._read()  # apart, so that half of a change does not reach the one in use
            if refusal := reload_data_port():
                raise ValueError(refusal)
            self.context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as error:
            logger.warning("the new certificate cannot be used, the old one stays: %s", error)
            return False
        logger.info("a new certificate is in use")
        return True

    async def watch(self, reload_data_port: Callable[[], str]) -> None:
        """Looks for changes until cancelled; on the loop's thread, as handshakes are."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.reload_if_changed(reload_data_port)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # No question on the terminal for a key with a password: a service has nobody to answer.
        context.load_cert_chain(*self._files, password=_no_password)
        return context

    def _state(self) -> tuple[tuple[int, ...], ...]:
        found = []
        for path in self._files:
            try:
                status = os.stat(path)  # of what a symbolic link names: Kubernetes swaps those
            except OSError:
                found.append((0, 0, 0))
                continue
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)


def _no_password() -> str:
    raise ValueError("the key wants a password; give one without")


def read_certificate(config: ServerConfig) -> Certificate | None:
    """None: neither port speaks TLS. Raises `ConfigError`."""
    if bool(config.tls_cert_file) != bool(config.tls_key_file):
        raise ConfigError("tls_cert_file and tls_key_file go together; give both")
    if not config.tls_cert_file:
        return None
    return Certificate(config.tls_cert_file, config.tls_key_file)
