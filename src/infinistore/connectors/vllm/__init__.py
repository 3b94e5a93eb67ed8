"""The vLLM connector; give vLLM this module's path.

    --kv-transfer-config '{"kv_connector": "InfiniStoreConnector",
        "kv_connector_module_path": "infinistore.connectors.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

Only the connector class needs vLLM; it is imported when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infinistore.connectors.vllm.connector import InfiniStoreConnector

__all__ = ["InfiniStoreConnector"]


def __getattr__(name: str) -> object:
    if name == "InfiniStoreConnector":
        from infinistore.connectors.vllm.connector import InfiniStoreConnector

        return InfiniStoreConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
