"""RouterSettings: every number the router works by, checked once."""

from __future__ import annotations

import dataclasses
import urllib.parse

from infinistore.errors import ConfigError

_MAY_BE_ZERO = ("port", "prefix_slack", "access_log")


def upstream_url(text: str) -> str:
    """The base URL of a vLLM server without a trailing slash or `/v1`, or `ConfigError`."""
    parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} has no usable port: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{text!r} is no server URL; write it as http://HOST:PORT")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"{text!r} must be http://HOST:PORT, with no query, fragment or user")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """How the router behaves. Times in seconds, sizes in bytes."""

    prefill_urls: tuple[str, ...]
    decode_urls: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    # A prefill that has not answered by then only costs the speed-up: decode recomputes.
    prefill_timeout_s: float = 60.0
    connect_timeout_s: float = 2.0
    # Silence of a decode: before its first byte (queue and prefill of a long prompt) and between.
    decode_idle_timeout_s: float = 600.0
    request_timeout_s: float = 3600.0
    # How long a client may not read before its request is given up.
    client_stall_s: float = 60.0
    probe_interval_s: float = 2.0
    probe_timeout_s: float = 5.0
    back_off_min_s: float = 0.5
    back_off_max_s: float = 30.0
    drain_s: float = 10.0
    request_bytes_max: int = 16 << 20
    answer_bytes_max: int = 64 << 20
    in_flight_max: int = 1024
    # Requests that a server may have more in flight than the least loaded one and yet be chosen,
    # because it was asked for the same prefix before. 0: only between equals.
    prefix_slack: int = 4
    access_log: bool = False  # a line for each request

    def __post_init__(self) -> None:
        """Normalises the URLs; raises `ConfigError` on what cannot work."""
        for name in ("prefill_urls", "decode_urls"):
            urls = tuple(upstream_url(url) for url in getattr(self, name))
            if len(set(urls)) != len(urls):
                raise ConfigError(f"{name} names a server twice: {', '.join(urls)}")
            object.__setattr__(self, name, urls)
        if not self.decode_urls:
            raise ConfigError("no decode server: give at least one --decode URL")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not in 0..65535")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _MAY_BE_ZERO and value >= 0:
                continue
            if isinstance(value, (int, float)) and value <= 0:
                raise ConfigError(f"{field.name} is {value}; it must be greater than 0")
        if self.back_off_max_s < self.back_off_min_s:
            raise ConfigError(
                f"back_off_max_s {self.back_off_max_s} is below back_off_min_s "
                f"{self.back_off_min_s}"
            )
