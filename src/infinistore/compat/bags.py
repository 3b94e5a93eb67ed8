"""The original's configurations: bags of attributes that take any keyword, checked by verify().

A keyword that this package knows as a setting of its own (`token`, `transport`, `pool_bytes`, ...)
has its effect there; `namespace` says where a client's keys live. Any other is kept, and ignored.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from infinistore import config
from infinistore.compat.words import (
    LINK_ETHERNET,
    LINK_IB,
    LOG_LEVELS,
    TYPE_LOCAL_GPU,
    TYPE_RDMA,
    TYPE_TCP,
)
from infinistore.errors import ConfigError

GIB = 1024**3
PORTS = 1 << 16  # the original's users rely on ports being taken modulo this


class _Bag:
    """Attributes with defaults."""

    DEFAULTS: ClassVar[dict[str, Any]]
    SETTINGS: ClassVar[type[config.ClientConfig] | type[config.ServerConfig]]

    def __init__(self, **given: Any) -> None:
        # What would hide a method (such as verify) is as unknown as anything else.
        known = {name: value for name, value in given.items() if not hasattr(type(self), name)}
        vars(self).update(self.DEFAULTS | known)

    def __getattr__(self, name: str) -> Any:  # for type checkers: any keyword may be there
        raise AttributeError(f"{type(self).__name__} has no {name!r}; give it as a keyword")

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if name != "token"}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def own_settings(self) -> dict[str, Any]:
        """Those attributes that are settings of this package, by their names here."""
        fields = {setting.field for setting in config.settings(self.SETTINGS)}
        ours = fields - set(self.DEFAULTS)
        return {name: value for name, value in vars(self).items() if name in ours}

    def _check_common(self, *, has_link: bool) -> None:
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log level {self.log_level!r} is none of {', '.join(LOG_LEVELS)}")
        if self.ib_port < 1:
            raise ConfigError(f"ib port is {self.ib_port}; it must be 1 or more")
        if has_link and self.link_type not in (LINK_IB, LINK_ETHERNET):
            raise ConfigError(f"link type {self.link_type!r} is neither IB nor Ethernet")


class ClientConfig(_Bag):
    """Where a server is and how to reach it."""

    SETTINGS = config.ClientConfig
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "connection_type": None,
        "host_addr": None,
        "service_port": None,
        "dev_name": "mlx5_1",
        "ib_port": 1,
        "link_type": LINK_IB,
        "log_level": "warning",
        "hint_gid_index": -1,
        "namespace": "default",
    }

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        vars(self)["log_level"] = os.environ.get("INFINISTORE_LOG_LEVEL", self.log_level)
        if not isinstance(self.host_addr, str):
            raise TypeError(f"host_addr is {self.host_addr!r}; give the server's address")
        if not isinstance(self.service_port, int):
            raise TypeError(f"service_port is {self.service_port!r}; give the server's port")

    def verify(self) -> None:
        """Raises `ConfigError` naming what cannot be."""
        if self.connection_type not in (TYPE_RDMA, TYPE_TCP, TYPE_LOCAL_GPU):
            raise ConfigError(f"Invalid connection type: {self.connection_type!r}")
        if not self.host_addr:
            raise ConfigError("Host address is empty")
        if self.service_port % PORTS == 0:
            raise ConfigError("Service port is 0")
        self._check_common(has_link=self.connection_type == TYPE_RDMA)

    @property
    def url(self) -> str:
        """As `connect()` takes it."""
        host = f"[{self.host_addr}]" if ":" in self.host_addr else self.host_addr
        return f"infinistore://{host}:{self.service_port % PORTS}"

    def choose_transport(self, asked: object) -> str | None:
        """What `connect()` is to use; None: what the environment says, or the best there is."""
        if asked is None and self.connection_type == TYPE_TCP:
            return None if os.environ.get("INFINISTORE_TRANSPORT") else "tcp"
        return None if asked is None else str(asked)


class ServerConfig(_Bag):
    """How a server in this process runs."""

    SETTINGS = config.ServerConfig
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "manage_port": 0,
        "service_port": 0,
        "log_level": "warning",
        "dev_name": "mlx5_1",
        "ib_port": 1,
        "link_type": LINK_IB,
        "prealloc_size": 16,
        "minimal_allocate_size": 64,
        "num_stream": 1,
        "auto_increase": False,
        "evict_min_threshold": 0.6,
        "evict_max_threshold": 0.8,
        "evict_interval": 5,
        "hint_gid_index": -1,
    }

    def verify(self) -> None:
        """Raises `ConfigError` naming what cannot be."""
        for name in ("service_port", "manage_port"):
            if getattr(self, name) % PORTS == 0:
                raise ConfigError(f"{name.replace('_', ' ').capitalize()} is 0")
        self._check_common(has_link=True)
        if self.minimal_allocate_size < 16:
            raise ConfigError("minimal allocate size should be greater than 16")

    def settings(self) -> config.ServerConfig:
        """As this package has it. Raises `ConfigError`."""
        given = {
            "port": self.service_port % PORTS,
            "admin_port": self.manage_port % PORTS,
            "pool_bytes": int(self.prealloc_size) * GIB,
            "evict_stop": float(self.evict_min_threshold),
            "evict_start": float(self.evict_max_threshold),
            "housekeeping_interval_s": float(self.evict_interval),
            "log_level": self.log_level,
        }
        return config.load(config.ServerConfig, given | self.own_settings())
