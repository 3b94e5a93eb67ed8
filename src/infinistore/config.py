"""Every setting of server and client, declared once.

Flags (`--pool`), environment names (`INFINISTORE_POOL`), TOML keys (`[server] pool = "64GiB"`) and
the reference in docs derive from the fields below: the field's name without its unit. Precedence:
flag, then environment, then file, then default.

    config = load(ServerConfig, flags={"port": 0}, file="infinistore.toml")
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from infinistore._compat import tomllib
from infinistore.errors import ConfigError
from infinistore.units import format_bytes, format_seconds, parse_bytes, parse_seconds

logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "INFINISTORE_"
CONFIG_FILE_VARIABLE = "INFINISTORE_CONFIG"
TOKEN_BYTES_MAX = 512  # of a hello on the wire
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one field: where it is read from, what it may be, what it means."""

    field: str
    kind: type[Value]
    default: Value
    help: str
    unit: str = ""  # "bytes" and "s" are part of the field's name only; texts carry their unit
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False

    @property
    def name(self) -> str:
        """The TOML key."""
        suffix = f"_{self.unit}"
        return self.field.removesuffix(suffix) if self.unit in ("bytes", "s") else self.field

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    def show(self, value: Value) -> str:
        """`value` as a person would write it; never a secret."""
        if self.secret:
            return "(hidden)" if value else "(none)"
        if self.unit == "bytes":
            return format_bytes(int(value))
        if self.unit == "s":
            return format_seconds(float(value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    def parse(self, raw: object, source: str) -> Value:
        """`raw` (text, or a typed TOML or Python value) as this setting's type, range checked."""
        try:
            value = self._convert(raw)
        except (ValueError, TypeError) as error:
            reason = f"{error}" if isinstance(error, ConfigError) else f"not {self._wanted()}"
            shown = "" if self.secret else f" = {raw!r}"
            raise ConfigError(f"{self.name}{shown} (from {source}): {reason}") from error
        self.check(value, source)
        return value

    def _convert(self, raw: object) -> Value:
        if self.kind is bool:
            return _as_bool(raw)
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise TypeError(raw)
        if self.kind is str:
            return _as_text(raw)
        if isinstance(raw, str):
            if self.unit == "bytes":
                return parse_bytes(raw)
            if self.unit == "s":
                return parse_seconds(raw)
            return self.kind(raw)
        if self.kind is int and int(raw) != raw:
            raise ValueError(raw)
        return self.kind(raw)

    def _wanted(self) -> str:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        return names[self.kind]

    def check(self, value: Value, source: str) -> None:
        """Raises `ConfigError` unless `value` is in range."""
        if self.choices and value not in self.choices:
            raise ConfigError(
                f"{self.name} = {value!r} (from {source}) is not one of {', '.join(self.choices)}"
            )
        if isinstance(value, str):
            return
        low, high = self.low, self.high
        # `not (low <= value)` rather than `value < low`: a NaN must fail.
        if (low is not None and not low <= value) or (high is not None and not value <= high):
            raise ConfigError(
                f"{self.name} = {self.show(value)} (from {source}) is out of range; "
                f"give {self.range_text()}"
            )

    def range_text(self) -> str:
        shown = [None if b is None else self.show(self.kind(b)) for b in (self.low, self.high)]
        if shown[1] is None:
            return f"at least {shown[0]}"
        return f"at most {shown[1]}" if shown[0] is None else f"{shown[0]} to {shown[1]}"


def _as_bool(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if str(raw).lower() not in words:
        raise ValueError(raw)
    return words[str(raw).lower()]


def _as_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(raw)
    if "\0" in raw:
        raise ConfigError("a text with a zero byte is refused")
    return raw


def _setting(default: Value, text: str, **facts: Any) -> Any:
    """One field: its default, its sentence, and unit, low, high, choices or secret."""
    facts |= {"help": text}
    return field(default=default, repr=not facts.get("secret", False), metadata=facts)


def _port(default: int, text: str) -> Any:
    return _setting(default, text, low=0, high=65535)


class _Config:
    """What ServerConfig and ClientConfig share: every value is checked however it came."""

    __slots__ = ()
    TABLE: ClassVar[str]

    def __post_init__(self) -> None:
        for setting in settings(type(self)):
            value = setting.parse(getattr(self, setting.field), "its argument")
            object.__setattr__(self, setting.field, value)


@dataclass(frozen=True, slots=True)
class ServerConfig(_Config):
    """How one server runs. A 0 or an empty text means: chosen at start, for this machine."""

    TABLE: ClassVar[str] = "server"

    host: str = _setting(
        "127.0.0.1",
        "Address to serve data on; beyond loopback a token (or --insecure) is needed.",
    )
    port: int = _port(22345, "Data port; 0 takes a free one.")
    admin_host: str = _setting("", "Address of the admin HTTP port; empty: the same as host.")
    admin_port: int = _port(18080, "Admin HTTP port; 0 takes a free one.")
    unix_socket: str = _setting(
        "",
        "Socket for clients on this machine (shared memory); empty: chosen, none: TCP only.",
    )
    pool_bytes: int = _setting(
        0,
        "Memory for values; 0: a quarter of what this machine or container has free.",
        unit="bytes",
        low=0,
        high=64 * TIB,
    )
    huge_pages: str = _setting(
        "auto", "Huge pages for the pool: auto takes them if free.", choices=("auto", "on", "off")
    )
    rdma: str = _setting(
        "auto",
        "Serve over RDMA: auto if there is a device; on: refuse to start without.",
        choices=("auto", "on", "off"),
    )
    rdma_device: str = _setting(
        "", "RDMA device to use, NAME or NAME:PORT; empty: the one that reaches the client."
    )
    workers: int = _setting(0, "Threads that move bytes; 0: by the CPUs.", low=0, high=64)
    token: str = _setting(
        "",
        "Secret that clients must show; prefer INFINISTORE_TOKEN or token_file to a flag.",
        secret=True,
    )
    token_file: str = _setting("", "File with the token, readable by its owner only.")
    read_token_file: str = _setting(
        "", "File with a second token, whose sessions only read; with token or tenants_file."
    )
    tenants_file: str = _setting(
        "", "TOML file with a table for each tenant: token, quota, admin; docs/security.md."
    )
    tls_cert_file: str = _setting(
        "",
        "Certificate chain (PEM); data and admin port then speak TLS only; with tls_key_file.",
    )
    tls_key_file: str = _setting("", "Its key (PEM); both are read again when they change.")
    insecure: bool = _setting(False, "Allow a wide address without a token.")
    eviction: str = _setting(
        "lru",
        "Which values leave first: lru (unused for longest) or reuse (least likely to be read).",
    )
    evict_start: float = _setting(
        0.95, "Evict in the background from this share of the pool on.", low=0.01, high=1
    )
    evict_stop: float = _setting(0.9, "Down to this share of the pool.", low=0, high=1)
    housekeeping_interval_s: float = _setting(
        1.0, "Time between two looks at the pool's level.", unit="s", low=0.05, high=3600
    )
    stage_timeout_s: float = _setting(
        30.0,
        "A value being written without progress is dropped after this.",
        unit="s",
        low=0.1,
        high=86400,
    )
    stage_share: float = _setting(
        0.25, "Share of the pool that unfinished values may take.", low=0.01, high=1
    )
    lease_max_s: float = _setting(
        300.0, "The longest lease a client gets.", unit="s", low=1, high=86400
    )
    sessions_max: int = _setting(1024, "Connections served at once.", low=1, high=16384)
    heat_half_life_s: float = _setting(
        1.0, "In so long a key's heat is halved.", unit="s", low=0.1, high=3600
    )
    drain_timeout_s: float = _setting(
        1.0, "How long a stop waits for requests in flight.", unit="s", low=0, high=3600
    )
    cluster: str = _setting(
        "",
        "The cluster that this server is a node of: infinistore+etcd://HOST:2379/NAME, or the "
        "list infinistore://A:22345,B:22345; empty: none.",
    )
    etcd_user: str = _setting("", "User of an etcd with authentication; empty: it has none.")
    etcd_password: str = _setting(
        "", "That user's password; prefer INFINISTORE_ETCD_PASSWORD to a flag.", secret=True
    )
    advertise: str = _setting(
        "", "host:port at which the cluster reaches this node; empty: host and port."
    )
    node_name: str = _setting(
        "", "This node's name in etcd, the same over restarts; empty: the advertised address."
    )
    node_ttl_s: float = _setting(
        5.0, "A node that etcd has not heard of for so long is gone.", unit="s", low=2, high=600
    )
    copy_rate_bytes: int = _setting(
        256 * MIB,
        "Bytes a second at most for copies and moves between nodes.",
        unit="bytes",
        low=MIB,
        high=TIB,
    )
    copies_max: int = _setting(
        15, "Copies of hot blocks beside their node's, at most; 0: none are made.", low=0, high=1023
    )
    copies_share: float = _setting(
        0.1, "Share of a pool that copies for other nodes may take.", low=0, high=0.9
    )
    log_level: str = _setting("info", "How much to log.", choices=LOG_LEVELS)
    log_format: str = _setting(
        "text", "Lines for people, or one JSON object a line.", choices=LOG_FORMATS
    )

    def __post_init__(self) -> None:
        _Config.__post_init__(self)  # super() without arguments breaks under slots=True
        if self.evict_stop >= self.evict_start:
            raise ConfigError(
                f"evict_stop = {self.evict_stop} must be below evict_start = {self.evict_start}"
            )
        if self.token and self.token_file:
            raise ConfigError("token and token_file are both set; keep one")


@dataclass(frozen=True, slots=True)
class ClientConfig(_Config):
    """How one client behaves; `connect()` takes these as keywords."""

    TABLE: ClassVar[str] = "client"

    token: str = _setting("", "Secret shown to the server.", secret=True)
    transport: str = _setting(
        "auto",
        "auto: shared memory on the same machine, else RDMA if both ends have it, else TCP.",
        choices=("auto", "shm", "rdma", "tcp"),
    )
    read_only: bool = _setting(
        False, "Never write: shared memory is mapped for reading only, and writes are refused."
    )
    rdma_device: str = _setting(
        "", "RDMA device to use, NAME or NAME:PORT; empty: the one that reaches the server."
    )
    tls_ca_file: str = _setting(
        "",
        "Certificates (PEM) that may vouch for servers at infinistores://; empty: those of "
        "SSL_CERT_FILE, else this machine's.",
    )
    etcd_user: str = _setting("", "User of an etcd with authentication; empty: it has none.")
    etcd_password: str = _setting("", "That user's password.", secret=True)
    channels: int = _setting(
        2, "TCP connections, and RDMA queue pairs, to one server.", low=1, high=16
    )
    connect_timeout_s: float = _setting(
        1.0, "Until a connection counts as failed.", unit="s", low=0.01, high=600
    )
    progress_timeout_s: float = _setting(
        0.9, "A request without any progress fails after this.", unit="s", low=0.05, high=600
    )
    verify: bool = _setting(
        True,
        "Check the checksum of all that is read. "
        "Off: for measuring; wrong bytes are then returned.",
    )
    batch_keys_max: int = _setting(
        4096, "Keys in one request; larger batches are split.", low=1, high=4096
    )
    batch_bytes_max: int = _setting(
        16 * MIB,
        "Bytes in one request; larger batches are split.",
        unit="bytes",
        low=4096,
        high=GIB,
    )
    requests_max: int = _setting(
        8, "Bulk requests in flight on one channel; more wait.", low=1, high=64
    )


C = TypeVar("C", bound=_Config)


def settings(config: type[_Config]) -> tuple[Setting, ...]:
    """The settings of a config class, in their order."""
    kinds: dict[str, type[Value]] = {"bool": bool, "int": int, "float": float, "str": str}
    return tuple(
        Setting(field=f.name, kind=kinds[str(f.type)], default=cast(Value, f.default), **f.metadata)
        for f in fields(config)  # type: ignore[arg-type]
    )


def load(
    config: type[C],
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | None = None,
) -> C:
    """Reads a config: `flags` by field name (None: not given), then environment, then TOML file.

    `file` defaults to INFINISTORE_CONFIG; neither given, no file is read.
    Raises `ConfigError` naming the value, where it came from, and the remedy.
    """
    environ = os.environ if environ is None else environ
    path = file or environ.get(CONFIG_FILE_VARIABLE, "")
    in_file = _read_table(Path(path), config) if path else {}
    values: dict[str, Value] = {}
    for setting in settings(config):
        for raw, source in _candidates(setting, flags or {}, environ, in_file, path):
            if raw is not None:
                values[setting.field] = setting.parse(raw, source)
                break
    return config(**values)


def _candidates(
    setting: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    in_file: Mapping[str, object],
    path: str,
) -> Iterator[tuple[object, str]]:
    yield flags.get(setting.field), setting.flag
    yield _from_environment(setting, environ), setting.variable
    yield in_file.get(setting.name), path


def _from_environment(setting: Setting, environ: Mapping[str, str]) -> str | None:
    text = environ.get(setting.variable)
    # Kubernetes gives every pod beside a Service named "infinistore" an INFINISTORE_PORT like
    # tcp://10.0.0.7:22345: that is its link, not our setting.
    if text is not None and setting.field == "port" and text.startswith("tcp://"):
        return None
    return text or None  # set but empty is how shells and manifests write "unset"


def _read_table(path: Path, config: type[_Config]) -> Mapping[str, object]:
    try:
        with path.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    tables = {"server", "client"}
    if stray := sorted(set(document) - tables):
        raise ConfigError(f"{path}: {stray[0]!r} stands outside the tables [server] and [client]")
    table = document.get(config.TABLE, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {config.TABLE} must be a table, written [{config.TABLE}]")
    known = [setting.name for setting in settings(config)]
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            raise ConfigError(f"{path}: [{config.TABLE}] has no setting {name!r}{hint}")
    return table


def read_token(config: ServerConfig) -> str:
    """The token itself, from the setting or from its file. Raises `ConfigError`."""
    token = config.token
    if config.token_file:
        token = _read_token_file(config.token_file, "token_file")
    return _of_fitting_length(token, "the token")


def read_readers_token(config: ServerConfig, token: str) -> str:
    """The token of who may only read; empty: there is none. Raises `ConfigError`."""
    if not config.read_token_file:
        return ""
    if not (token or config.tenants_file):
        raise ConfigError(
            "read_token_file is set but no token: anybody could write; set token_file too"
        )
    readers = _read_token_file(config.read_token_file, "read_token_file")
    if readers == token:
        raise ConfigError("read_token_file holds the token of those who write; make another")
    return _of_fitting_length(readers, "read_token_file's token")


def _of_fitting_length(token: str, what: str) -> str:
    if len(token.encode()) > TOKEN_BYTES_MAX:
        raise ConfigError(f"{what} is longer than {TOKEN_BYTES_MAX} bytes; take a shorter one")
    return token


def _read_token_file(file: str, setting: str) -> str:
    path = Path(file)
    token = check_secret_file(path, setting).strip()
    if not token:
        raise ConfigError(f"{setting} {path} is empty; write the token into it")
    return token


def check_secret_file(path: Path, setting: str) -> str:
    """The text of a file that only its owner may change. Raises `ConfigError`."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {setting} {path}: {error}") from error
    except UnicodeDecodeError:  # its message would quote the file
        raise ConfigError(f"cannot read {setting} {path}: it is no UTF-8 text") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{setting} {path} is writable by others; run: chmod 600 {path}")
    if mode & stat.S_IROTH:  # refused it cannot be: so a Kubernetes secret is mounted by default
        logger.warning("%s %s is readable by everyone; run: chmod 600 %s", setting, path, path)
    return text


def is_loopback(address: str) -> bool:
    """Whether a numeric address can be reached from this machine only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
