"""An engine's queue of work on a GPU: what copies to and from its KV cache must wait for.

The only place of the connectors that asks torch.
"""

from __future__ import annotations


def current_stream(device: int) -> int:
    """The handle of the stream on which the calling thread computes."""
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def wait_computed(device: int) -> None:
    """Waits for all that the calling thread has queued on the GPU."""
    import torch

    torch.cuda.current_stream(device).synchronize()
