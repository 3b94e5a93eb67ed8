"""What CUDA's driver answers where the product relies on it: the double must say the same.

python tests/driver_facts.py libcuda.so.1     on a machine with a GPU: lists what differs
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time

import numpy as np

from fake_driver import (
    ALREADY_REGISTERED,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_VALUE,
    LIBRARY,
    NOT_PERMITTED,
    NOT_READY,
    NOT_REGISTERED,
    PORTABLE,
    SUCCESS,
    DeviceArray,
    Driver,
    HostFunction,
    Launcher,
    PinnedArray,
)

NULL_PAGE = 16  # an address that is nobody's

# Of documentation, not of a GPU, until someone has run this on one.
EXPECTED = {
    "no context: cuEventCreate": INVALID_CONTEXT,
    "no context: cuEventRecord": INVALID_CONTEXT,
    "no context: cuEventQuery": SUCCESS,
    "no context: cuEventSynchronize": INVALID_CONTEXT,
    "no context: cuPointerGetAttribute": INVALID_CONTEXT,
    "no context: cuMemHostUnregister": INVALID_CONTEXT,
    "memory: registered again": ALREADY_REGISTERED,
    "memory: its half registered": ALREADY_REGISTERED,
    "memory: unregistered at its middle": NOT_REGISTERED,
    "memory: unregistered twice": NOT_REGISTERED,
    "memory: attribute of a freed address": INVALID_VALUE,
    "memory: attribute of the host's": INVALID_VALUE,
    "memory: type of pinned": 1,
    "memory: type of a device's": 2,
    "launch: no blocks": INVALID_VALUE,
    "launch: 1056 threads": INVALID_VALUE,
    "host function: cuStreamSynchronize in it": NOT_PERMITTED,
    "failed: cuEventQuery": ILLEGAL_ADDRESS,
    "failed: cuEventSynchronize": ILLEGAL_ADDRESS,
    "failed: cuStreamSynchronize": ILLEGAL_ADDRESS,
    "failed: cuEventCreate": ILLEGAL_ADDRESS,
    "failed: cuMemHostAlloc": ILLEGAL_ADDRESS,
    "failed: cuPointerGetAttribute": ILLEGAL_ADDRESS,
    "failed: cuCtxPushCurrent_v2": SUCCESS,
    "failed: cuCtxPopCurrent_v2": SUCCESS,
    "failed: host functions that came": 0,
}


def facts(driver: Driver) -> dict[str, int]:
    """All of EXPECTED's, as this driver has them. The device is lost to this process afterwards."""
    found = {**_of_contexts(driver), **_of_memory(driver), **_of_launches(driver)}
    return {**found, **_of_failure(driver)}


def _of_contexts(driver: Driver) -> dict[str, int]:
    event = driver.event()
    handle = ctypes.byref(ctypes.c_uint64())
    calls = {
        "cuEventCreate": (handle, 2),
        "cuEventRecord": (event, 0),
        "cuEventQuery": (event,),
        "cuEventSynchronize": (event,),
        "cuPointerGetAttribute": (handle, 2, NULL_PAGE),
        "cuMemHostUnregister": (4096,),
    }
    return {f"no context: {name}": driver.call(name, *given) for name, given in calls.items()}


def _of_memory(driver: Driver) -> dict[str, int]:
    memory = mmap.mmap(-1, 1 << 20)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    pinned = PinnedArray(driver, 4096, np.uint8)
    array = DeviceArray(driver, 4096)
    value = ctypes.c_uint64()

    def attribute(of: int) -> int:
        return driver.call("cuPointerGetAttribute", ctypes.byref(value), 2, of)

    def register(begin: int, size: int) -> int:
        return driver.call("cuMemHostRegister_v2", begin, size, PORTABLE)

    def unregister(begin: int) -> int:
        return driver.call("cuMemHostUnregister", begin)

    found = {}
    with driver.on():
        assert attribute(pinned.address) == SUCCESS
        found["type of pinned"] = value.value & 0xFFFFFFFF
        assert attribute(array.address) == SUCCESS
        found["type of a device's"] = value.value & 0xFFFFFFFF
        array.free()
        found["attribute of a freed address"] = attribute(array.address)
        found["attribute of the host's"] = attribute(address)
        assert register(address, 1 << 20) == SUCCESS
        found["registered again"] = register(address, 1 << 20)
        found["its half registered"] = register(address + (1 << 19), 1 << 19)
        found["unregistered at its middle"] = unregister(address + (1 << 19))
        assert unregister(address) == SUCCESS
        found["unregistered twice"] = unregister(address)
    pinned.free()
    return {f"memory: {name}": status for name, status in found.items()}


def _of_launches(driver: Driver) -> dict[str, int]:
    launcher = Launcher(driver)
    stream = driver.stream()
    said: list[int] = []
    function = HostFunction(lambda _: said.append(driver.call("cuStreamSynchronize", stream)))
    found = {
        "launch: no blocks": launcher.status("tiles_to_host", stream, 0, grid=0),
        "launch: 1056 threads": launcher.status("tiles_to_host", stream, 0, block=1056),
    }
    with driver.on():
        driver.check("cuLaunchHostFunc", stream, function, 0)
        driver.check("cuStreamSynchronize", stream)
    launcher.close()
    return {**found, "host function: cuStreamSynchronize in it": said[0]}


def _of_failure(driver: Driver) -> dict[str, int]:
    launcher = Launcher(driver)
    stream, event = driver.stream(), driver.event()
    came: list[int] = []
    function = HostFunction(lambda _: came.append(1))
    handle = ctypes.byref(ctypes.c_uint64())
    with driver.on():
        launcher.launch("tiles_to_host", stream, (NULL_PAGE, launcher.results.address, 0, 8))
        driver.call("cuEventRecord", event, stream)
        driver.call("cuLaunchHostFunc", stream, function, 0)
        while driver.call("cuEventQuery", event) == NOT_READY:
            time.sleep(0.001)
        time.sleep(0.2)  # for a host function that should not come
        calls = {
            "cuEventQuery": (event,),
            "cuEventSynchronize": (event,),
            "cuStreamSynchronize": (stream,),
            "cuEventCreate": (handle, 2),
            "cuMemHostAlloc": (handle, 4096, PORTABLE),
            "cuPointerGetAttribute": (handle, 2, launcher.tiles.address),
            "cuCtxPushCurrent_v2": (driver.contexts[0],),
            "cuCtxPopCurrent_v2": (handle,),
        }
        found = {f"failed: {name}": driver.call(name, *given) for name, given in calls.items()}
    return {**found, "failed: host functions that came": len(came)}


def main() -> int:
    """Exit status 1 if something differs."""
    name = sys.argv[1] if len(sys.argv) > 1 else str(LIBRARY)
    found = facts(Driver(name))
    for fact, expected in EXPECTED.items():
        verdict = "" if found[fact] == expected else f"  expected {expected}"
        print(f"{fact:<45} {found[fact]}{verdict}")
    return int(found != EXPECTED)


if __name__ == "__main__":
    sys.exit(main())
