"""The connector's settings: what `kv_connector_extra_config` may say."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from infinistore.connectors.vllm import epochs
from infinistore.errors import ConfigError

ASYNC, LAYERWISE = "async", "layerwise"
_CHOICES = {
    "load_mode": (ASYNC, LAYERWISE),
    "transport": ("auto", "shm", "tcp"),
    "epoch_on_reset": epochs.ON_RESET,
}


_REPLICAS = range(1, 9)  # as infinistore.connect takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """How the connector behaves; the fields are the keys of the extra config."""

    url: str = "infinistore://127.0.0.1:22345"
    token: str = ""
    transport: str = "auto"
    replicas: int = 1  # on how many nodes of a cluster each block is written
    tenant: str = "default"
    load_mode: str = ASYNC  # async: between steps; layerwise: layer k+1 under layer k's compute
    lookup_timeout_s: float = 0.25  # a request waits so long for the store's word, then computes
    delivery_timeout_s: float = 1.0  # and so long for blocks that a prefill instance announced
    save_timeout_s: float = 5.0  # a step waits so long for its saves
    load_timeout_s: float = 30.0  # a load waits so long
    weights_id: str = ""  # stands for the weights' digest; the user vouches for it
    weights_epoch: str = ""  # of weights that change in running engines: INFINISTORE_WEIGHTS_EPOCH
    epoch_on_reset: str = "new"  # a reset of the connector's cache begins one; keep: does not
    split_tp: int = 0  # values are cut as this tensor-parallel size has them; 0: the engine's own
    allow_load_failure_fail: bool = False  # accept kv_load_failure_policy "fail"

    @classmethod
    def of(cls, extra: Mapping[str, object]) -> ConnectorSettings:
        """Reads the extra config. Raises `ConfigError` for a key or value that it cannot mean."""
        known = {f.name: f for f in fields(cls)}
        values: dict[str, object] = {}
        if epoch := os.environ.get(epochs.VARIABLE):
            values["weights_epoch"] = _checked("weights_epoch", epoch, "str")
        for name, value in extra.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
                raise ConfigError(f"kv_connector_extra_config has an unknown key {name!r}{hint}")
            values[name] = _checked(name, value, str(known[name].type))
        return cls(**values)  # type: ignore[arg-type]


def _checked(name: str, value: object, kind: str) -> object:
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 < value <= 600:
            raise ConfigError(f"kv_connector_extra_config: {name} = {value}; give 0 to 600 seconds")
        return float(value)
    if name == "split_tp" and not (type(value) is int and 0 <= value <= 1024):
        raise ConfigError(f"kv_connector_extra_config: split_tp = {value!r}; give 0 to 1024")
    if name == "replicas" and kind == type(value).__name__ and value not in _REPLICAS:
        raise ConfigError(f"kv_connector_extra_config: replicas = {value}; give 1 to 8")
    if kind != type(value).__name__:
        raise ConfigError(f"kv_connector_extra_config: {name} = {value!r} is not a {kind}")
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise ConfigError(f"kv_connector_extra_config: {name} = {value!r}; choose from {choices}")
    if name == "weights_epoch" and value:
        return epochs.checked(str(value))
    if name == "tenant" and not value:
        raise ConfigError("kv_connector_extra_config: tenant is empty; leave it out for 'default'")
    return value
