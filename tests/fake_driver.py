"""CUDA's driver through ctypes: the double for machines without a GPU, or the true one.

The double is libfake_cuda.so, from tests/fake_cuda/. The product loads it in place of libcuda.so.1
if INFINISTORE_CUDA_LIBRARY names it, once in a process.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = Path(__file__).parents[1] / "build/dev/tests/fake_cuda/libfake_cuda.so"
PTX = Path(__file__).parents[1] / "core/device/copy_tiles.ptx"
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# As in core/device/tile.h.
TILE = np.dtype(
    [("device", "u8"), ("host", "u8"), ("position", "u8"), ("bytes", "u4"), ("unused", "u4")]
)

SUCCESS = 0
INVALID_VALUE = 1
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
ILLEGAL_ADDRESS = 700
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713
LAUNCH_FAILED = 719
NOT_PERMITTED = 800
NOT_SUPPORTED = 801

NON_BLOCKING = 1
PORTABLE = 1
ALWAYS = -1
LEGACY_STREAM = 1  # its name where 0 would mean "none"
PER_THREAD_STREAM = 2


class DriverError(Exception):
    """A call that a test needs failed."""


class Driver:
    """What tests call of CUDA's driver. Numbers travel as 64 bits, which our ABIs take."""

    def __init__(self, library: str | os.PathLike[str]) -> None:
        self.library = ctypes.CDLL(str(library))
        self.check("cuInit", 0)
        count = ctypes.c_int()
        self.check("cuDeviceGetCount", ctypes.byref(count))
        self.device_count = count.value
        self.contexts = [self._retain(device) for device in range(count.value)]

    def _retain(self, device: int) -> int:
        context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        assert context.value
        return context.value

    def call(self, name: str, *arguments: Any) -> int:
        """The status of one call."""
        values = [ctypes.c_uint64(a % 2**64) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self.library, name)(*values))

    def check(self, name: str, *arguments: Any) -> None:
        """One call that must succeed."""
        status = self.call(name, *arguments)
        if status != SUCCESS:
            raise DriverError(f"{name} says {status}")

    def made(self, name: str, *arguments: Any) -> int:
        """The handle or address that a call writes to its first parameter."""
        handle = ctypes.c_uint64()
        self.check(name, ctypes.byref(handle), *arguments)
        return handle.value

    @contextmanager
    def on(self, device: int = 0) -> Iterator[None]:
        """The calling thread has this device's context."""
        self.check("cuCtxPushCurrent_v2", self.contexts[device])
        try:
            yield
        finally:
            self.check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self, device: int = 0, flags: int = NON_BLOCKING) -> int:
        """A new stream."""
        with self.on(device):
            return self.made("cuStreamCreateWithPriority", flags, 0)

    def event(self, device: int = 0) -> int:
        """A new event."""
        with self.on(device):
            return self.made("cuEventCreate", 2)

    def synchronize(self, stream: int, device: int = 0) -> None:
        """Waits for all that a stream has to do."""
        with self.on(device):
            self.check("cuStreamSynchronize", stream)


class FakeDriver(Driver):
    """The double, with what only it can do."""

    def __init__(self) -> None:
        if not LIBRARY.exists():
            raise FileNotFoundError(f"{LIBRARY} is not there; make build")
        super().__init__(LIBRARY)
        self.library.fake_cuda_counter.restype = ctypes.c_uint64
        self._tickets = itertools.count(1)

    def hold(self, stream: int = 0) -> None:
        """Holds the kernels of a stream, or with 0 all, until release_kernels()."""
        self._knob("fake_cuda_hold", stream, 1)

    def release_kernels(self, stream: int = 0) -> None:
        """Ends hold()."""
        self._knob("fake_cuda_hold", stream, 0)

    def delay_us(self, delay_us: int) -> None:
        """Each kernel takes so much longer."""
        self._knob("fake_cuda_delay_us", delay_us)

    def fail(self, call: str, status: int, passing: int = 0) -> None:
        """The call of that name after `passing` others fails once; passing=ALWAYS: all of them do.

        "kernel" stands for a kernel itself, whose context fails with it.
        """
        self._knob("fake_cuda_fail", call.encode(), status, passing)

    def break_device(self, device: int, status: int = ILLEGAL_ADDRESS) -> None:
        """Every call in the device's context fails from now on, as after a caller's wild kernel."""
        self._knob("fake_cuda_break", device, status)

    def set_attribute(self, attribute: int, value: int) -> None:
        """What cuDeviceGetAttribute tells of every device."""
        self._knob("fake_cuda_set_attribute", attribute, value)

    def enqueue_wait(self, stream: int, device: int = 0) -> int:
        """Queues work that lasts until release(ticket): a long computation of the caller's."""
        ticket = next(self._tickets)
        with self.on(device):
            self.check("fake_cuda_enqueue_wait", stream, ticket)
        return ticket

    def release(self, ticket: int) -> None:
        """Ends the work that has this ticket, also before it began."""
        self._knob("fake_cuda_release", ticket)

    def enqueue_fill(
        self, stream: int, address: int, size: int, seed: int, device: int = 0
    ) -> None:
        """Queues a kernel that writes pattern(size, seed)."""
        with self.on(device):
            self.check("fake_cuda_enqueue_fill", stream, address, size, seed)

    def counter(self, name: str) -> int:
        """Of what it has done or keeps: see fake_cuda_counter() in tests/fake_cuda/knobs.cpp."""
        value = int(self.library.fake_cuda_counter(name.encode()))
        assert value != 2**64 - 1, f"no counter is named {name}"
        return value

    def reset(self) -> None:
        """Forgets faults and what was asked for, and lets every stream end its work."""
        self._knob("fake_cuda_reset")

    def _knob(self, name: str, *arguments: Any) -> None:
        self.call(name, *arguments)


def pattern(size: int, seed: int) -> np.ndarray:
    """The bytes that enqueue_fill() writes."""
    words = np.arange(1, (size + 7) // 8 + 1, dtype=np.uint64) + np.uint64(seed << 32)
    words *= np.uint64(0xD6E8FEB86659FD93)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0xD6E8FEB86659FD93)
    return words.view(np.uint8)[:size].copy()


class DeviceArray:
    """Owns a device's memory, and shows it as arrays of CUDA libraries do.

    `stream`: on which its last work is queued; None: nothing is under way.
    """

    def __init__(
        self,
        driver: Driver,
        shape: int | tuple[int, ...],
        dtype: Any = np.uint8,
        *,
        device: int = 0,
        stream: int | None = None,
        readonly: bool = False,
    ) -> None:
        self._driver = driver
        self.shape = (shape,) if isinstance(shape, int) else shape
        self.dtype = np.dtype(dtype)
        self.device = device
        self.stream = stream
        self.readonly = readonly
        with driver.on(device):
            self.address = driver.made("cuMemAlloc_v2", self.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, self.readonly),
            "strides": None,
            "stream": self.stream,
        }

    def upload(self, source: np.ndarray) -> DeviceArray:
        """Takes the bytes of a host's array, and returns itself."""
        assert source.nbytes == self.nbytes
        host = np.ascontiguousarray(source)
        with self._driver.on(self.device):
            self._driver.check("cuMemcpyHtoD_v2", self.address, host.ctypes.data, host.nbytes)
        return self

    def download(self) -> np.ndarray:
        """Its elements as an array of the host's."""
        host = np.empty(self.shape, self.dtype)
        with self._driver.on(self.device):
            self._driver.check("cuMemcpyDtoH_v2", host.ctypes.data, self.address, host.nbytes)
        return host

    def free(self) -> None:
        """Gives the memory back; the address may be another's next."""
        with self._driver.on(self.device):
            self._driver.check("cuMemFree_v2", self.address)


class PinnedArray:
    """Pinned memory of the host, as numpy sees it."""

    def __init__(self, driver: Driver, count: int, dtype: Any, flags: int = PORTABLE) -> None:
        self._driver = driver
        size = count * np.dtype(dtype).itemsize
        with driver.on():
            self.address = driver.made("cuMemHostAlloc", size, flags)
        memory = (ctypes.c_uint8 * size).from_address(self.address)
        self.array = np.frombuffer(memory, dtype)

    def free(self) -> None:
        """Gives it back."""
        with self._driver.on():
            self._driver.check("cuMemFreeHost", self.address)


class Launcher:
    """The kernels of a device, and pinned memory for their tiles and results."""

    def __init__(self, driver: Driver, device: int = 0, flags: int = PORTABLE) -> None:
        self.driver = driver
        self.device = device
        with driver.on(device):
            self.module = driver.made("cuModuleLoadData", PTX.read_bytes())
        self.tiles = PinnedArray(driver, 64, TILE, flags)
        self.results = PinnedArray(driver, 64, np.uint64, flags)

    def function(self, name: str) -> int:
        """A kernel by its name."""
        with self.driver.on(self.device):
            return self.driver.made("cuModuleGetFunction", self.module, name.encode())

    def status(self, name: str, stream: int, count: int, grid: int = 16, block: int = 512) -> int:
        """Of launching it with the first `count` tiles."""
        parameters = (
            ctypes.c_uint64(self.tiles.address),
            ctypes.c_uint64(self.results.address),
            ctypes.c_uint32(count),
        )
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(p) for p in parameters))
        shape = (grid, 1, 1, block, 1, 1)
        with self.driver.on(self.device):
            return self.driver.call(
                "cuLaunchKernel", self.function(name), *shape, 0, stream, pointers, 0
            )

    def launch(self, name: str, stream: int, *tiles: tuple[int, int, int, int]) -> None:
        """Launches it with these: device address, host address, position, bytes."""
        for index, tile in enumerate(tiles):
            self.tiles.array[index] = (*tile, 0)
        assert self.status(name, stream, len(tiles)) == SUCCESS

    def close(self) -> None:
        """Gives the pinned memory back, once no kernel uses it."""
        self.tiles.free()
        self.results.free()
