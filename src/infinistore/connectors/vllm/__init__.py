"""The vLLM connector; give vLLM this module's path.

    --kv-transfer-config '{"kv_connector": "InfiniStoreConnector",
        "kv_connector_module_path": "infinistore.connectors.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

Only the connector class needs vLLM; it is imported when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infinistore.connectors.vllm.epochs import WorkerExtension, set_weights_epoch
from infinistore.errors import SetupError

if TYPE_CHECKING:
    from infinistore.connectors.vllm.connector import InfiniStoreConnector

__all__ = ["InfiniStoreConnector", "WorkerExtension", "set_weights_epoch"]


def __getattr__(name: str) -> object:
    if name == "InfiniStoreConnector":
        try:
            from infinistore.connectors.vllm.connector import InfiniStoreConnector
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in ("vllm", "torch"):
                raise
            raise SetupError(
                f"InfiniStoreConnector needs {missing}, which is not installed; vLLM brings both "
                "(pip install vllm, or a build of it for your machine)"
            ) from error

        return InfiniStoreConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
