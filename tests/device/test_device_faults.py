"""What can be wrong with GPUs and their memory: early and clear errors, and all else goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infinistore
from fake_driver import (
    ALWAYS,
    ILLEGAL_ADDRESS,
    LAUNCH_FAILED,
    LIBRARY,
    DeviceArray,
    FakeDriver,
    pattern,
)
from infinistore import (
    Code,
    InfiniStoreError,
    RequestTimeoutError,
    Segments,
    SetupError,
    UsageError,
)
from server_process import ServerProcess
from waiting import freeze, until

pytestmark = pytest.mark.usefixtures("no_faults")
Arrays = Callable[..., DeviceArray]
SIZE = 40_000
BLOCK = 4_000
BLOCKS = [(f"k{i}", i * BLOCK) for i in range(SIZE // BLOCK)]
TESTS = Path(__file__).parents[1]


def one_segment(address: int, size: int = 4096, device: int = 0) -> Segments:
    return Segments(np.array([address], np.uint64), size, device=device)


def works_for_cpus(client: infinistore.Client, key: str = "of the cpu") -> None:
    data = np.arange(100, dtype=np.uint64)
    assert client.write_cache(data, [(key, 0)], 100, on_exists="replace").wait(20).all_ok
    back = np.zeros_like(data)
    assert client.read_cache(back, [(key, 0)], 100).wait(20).all_ok
    assert np.array_equal(back, data)


def works_for_gpus(client: infinistore.Client, array: DeviceArray) -> None:
    data = pattern(SIZE, 77)
    array.upload(data)
    assert client.write_cache(array, BLOCKS, BLOCK, on_exists="replace").wait(20).all_ok
    array.upload(np.zeros(SIZE, np.uint8))
    assert client.read_cache(array, BLOCKS, BLOCK).wait(20).all_ok
    assert np.array_equal(array.download(), data)


# ---- memory that is not what it is said to be ----


def test_memory_of_the_host_passed_as_a_gpus(
    driver: FakeDriver, client: infinistore.Client
) -> None:
    host = np.zeros(4096, np.uint8)
    address = host.ctypes.data
    for use in (client.write_segments, client.read_segments):
        with pytest.raises(
            UsageError, match=rf"{address:#x} \(4096 bytes\) is not memory of a CUDA"
        ):
            use(["k"], one_segment(address))
    works_for_cpus(client)


def test_memory_that_was_freed(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    array = device_array(4096)
    array.free()
    with pytest.raises(UsageError, match=f"{array.address:#x}.*was it freed"):
        client.write_cache(array, [("k", 0)], 4096)
    with pytest.raises(UsageError, match=f"{array.address:#x}.*was it freed"):
        client.write_segments(["k"], one_segment(array.address))
    works_for_cpus(client)


def test_memory_of_another_device(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    array = device_array(4096, device=1)
    with pytest.raises(UsageError, match=f"{array.address:#x}.*is on CUDA device 1, not 0"):
        client.write_segments(["k"], one_segment(array.address, device=0))
    assert client.write_segments(["k"], one_segment(array.address, device=1)).wait(20).all_ok


def test_memory_of_another_context(driver: FakeDriver, client: infinistore.Client) -> None:
    driver.made("cuCtxCreate_v2", 0, 0)  # and it is current
    address = driver.made("cuMemAlloc_v2", 4096)
    driver.made("cuCtxPopCurrent_v2")
    with pytest.raises(UsageError, match="another context than the device's primary one"):
        client.write_segments(["k"], one_segment(address))
    with driver.on():
        driver.check("cuMemFree_v2", address)


def test_blocks_beyond_their_allocation(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    array = device_array(4096)
    with pytest.raises(UsageError, match="past the end of its allocation, 4096 bytes from"):
        client.read_segments(["k"], one_segment(array.address + 1))
    rows = np.array([array.address, array.address + 4095], np.uint64)
    with pytest.raises(UsageError, match=f"{array.address + 4095:#x}"):
        client.write_segments(["k", "l"], Segments(rows, 2, device=0))
    assert client.exists(["k", "l"]) == [False, False]


def test_a_device_that_is_not_there(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    array = device_array(4096)
    with pytest.raises(SetupError, match="no CUDA device 7; this process sees 2"):
        client.write_segments(["k"], one_segment(array.address, device=7))
    with pytest.raises(SetupError, match="no CUDA device 2; this process sees 2"):
        client.prepare_device(2)
    for wrong in (-1, True, "0", None):
        with pytest.raises(UsageError, match="give the number of a CUDA device"):
            client.prepare_device(wrong)  # type: ignore[arg-type]
    works_for_gpus(client, device_array(SIZE))


# ---- machines that cannot: each in a process of its own, for the driver is loaded once ----

BODY = """
import sys
import numpy as np
import infinistore

with infinistore.connect(sys.argv[1], namespace=sys.argv[2]) as client:
    rows = np.array([4096], np.uint64)
    def put():
        client.write_segments(["k"], infinistore.Segments(rows, 64, device=0))
    for call in (put, lambda: client.prepare_device(0)):
        try:
            call()
        except infinistore.InfiniStoreError as error:
            print(type(error).__name__, error)
    client.write_cache(np.arange(8), [("of the cpu", 0)], 8)
    client.sync()
    print(client.exists(["k", "of the cpu"]))
"""


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"INFINISTORE_CUDA_LIBRARY": "/nonexistent"}, "/nonexistent: cannot open"),
        ({"INFINISTORE_CUDA_LIBRARY": "libm.so.6"}, "libm.so.6 has no cuInit"),
        ({"FAKE_CUDA_DEVICES": "0"}, "CUDA_ERROR_NO_DEVICE (100)"),
    ],
    ids=["no library", "another library", "no device"],
)
def test_a_machine_without_cuda_says_what_to_do(
    server: ServerProcess, environment: dict[str, str], says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BODY, server.url, says[:20]],
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS,
        env=os.environ | {"INFINISTORE_CUDA_LIBRARY": str(LIBRARY)} | environment,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    for line in lines[:2]:
        assert line.startswith("SetupError CUDA cannot be used: ")
        assert says in line
        assert "install the NVIDIA driver" in line
        assert "give memory of the host" in line
    assert lines[2] == "[False, True]"


def test_a_device_that_does_not_see_the_hosts_addresses(server: ServerProcess) -> None:
    body = "from fake_driver import FakeDriver; FakeDriver().set_attribute(91, 0)\n" + BODY
    done = subprocess.run(
        [sys.executable, "-c", body, server.url, "attribute"],
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS,
        env=os.environ | {"INFINISTORE_CUDA_LIBRARY": str(LIBRARY)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "SetupError CUDA device 0 does not see the host's memory" in lines[0]
    assert lines[-1] == "[False, True]"


# ---- calls that fail on the way ----

CALLS = (
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuPointerGetAttribute",
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("passing", [0, 1, 2])
@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_call_that_fails_once(
    driver: FakeDriver,
    device_array: Arrays,
    client: infinistore.Client,
    call: str,
    passing: int,
    verb: str,
) -> None:
    """It is told by its name, or it did not matter; the next batch is well, and nothing is left."""
    data = pattern(SIZE, 5)
    assert client.write_cache(data, BLOCKS, BLOCK).wait(20).all_ok
    array = device_array(SIZE).upload(data)
    stream = driver.stream()
    array.stream = stream
    events = driver.counter("live_events")
    ticket = driver.enqueue_wait(stream)
    driver.fail(call, 2, passing)
    use = client.read_cache if verb == "read" else client.write_cache
    others = {} if verb == "read" else {"on_exists": "replace"}
    error: InfiniStoreError | None = None
    try:
        batch = use(array, BLOCKS, BLOCK, **others)
        driver.release(ticket)
        batch.wait(20)
        error = batch.error()
        del batch
    except InfiniStoreError as raised:
        error = raised
    driver.release(ticket)
    if error is not None:
        assert isinstance(error, SetupError | UsageError), repr(error)
        assert "CUDA" in str(error)
        assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in str(error)
    error = None
    driver.reset()
    works_for_cpus(client)
    works_for_gpus(client, array)
    client.sync()
    until(lambda: driver.counter("live_events") == events)


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_question_that_is_refused_does_not_end_a_copy(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, verb: str
) -> None:
    data = pattern(SIZE, 5)
    assert client.write_cache(data, BLOCKS, BLOCK).wait(20).all_ok
    array = device_array(SIZE).upload(data)
    driver.hold()
    if verb == "read":
        batch = client.read_cache(array, BLOCKS, BLOCK)
    else:
        batch = client.write_cache(array, BLOCKS, BLOCK, on_exists="replace")
    until(lambda: driver.counter("kernels_waiting") > 0)
    armed = driver.counter("armed_failures")
    driver.fail("cuEventQuery", 2)
    until(lambda: driver.counter("armed_failures") == armed)
    with pytest.raises(RequestTimeoutError):
        batch.wait(0.3)
    driver.release_kernels()
    assert batch.wait(20).all_ok


@pytest.mark.parametrize("call", ["cuMemcpyBatchAsync", "cuLaunchKernel", "cuEventRecord"])
def test_a_copy_engine_that_is_refused(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, call: str
) -> None:
    array = device_array(SIZE).upload(pattern(SIZE, 1))
    rows = np.array([array.address], np.uint64)
    segments = Segments(rows, SIZE, array, device=0, by_copy_engine=True)
    driver.fail(call, 2, ALWAYS)

    def write() -> None:
        client.write_segments(["k"], segments)
        client.sync()

    with pytest.raises(SetupError, match=r"CUDA device 0.*CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        write()
    driver.reset()
    assert client.exists(["k"]) == [False]
    assert client.write_segments(["k"], segments).wait(20).all_ok
    works_for_gpus(client, array)


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_kernel_that_fails(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, verb: str
) -> None:
    """The device is lost to this process, as CUDA has it; the CPU's caches are not."""
    data = pattern(SIZE, 5)
    assert client.write_cache(data, BLOCKS, BLOCK).wait(20).all_ok
    array = device_array(SIZE).upload(data)
    driver.fail("kernel", LAUNCH_FAILED)
    if verb == "read":
        batch = client.read_cache(array, BLOCKS, BLOCK)
    else:
        batch = client.write_cache(array, [(f"new {k}", at) for k, at in BLOCKS], BLOCK)
    outcomes = batch.wait(20)
    assert not outcomes.all_ok
    error = batch.error()
    assert isinstance(error, SetupError), repr(error)
    assert "CUDA device 0" in str(error)
    assert "CUDA_ERROR_LAUNCH_FAILED (719)" in str(error)
    # The next ones say the same, at once.
    for use in (client.read_cache, client.write_cache):
        with pytest.raises(SetupError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\)"):
            use(array, BLOCKS, BLOCK)
    works_for_cpus(client)
    driver.reset()
    works_for_gpus(client, array)


def test_a_computation_of_the_callers_that_fails(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    """A batch that waits for it ends, and says why."""
    stream = driver.stream()
    array = device_array(SIZE, stream=stream)
    driver.enqueue_wait(stream)
    batch = client.write_cache(array, BLOCKS, BLOCK)
    assert not batch.done
    driver.break_device(0, ILLEGAL_ADDRESS)
    outcomes = batch.wait(20)
    assert set(outcomes) == {Code.SETUP}
    error = batch.error()
    assert isinstance(error, SetupError)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in str(error)
    works_for_cpus(client)
    assert client.exists([key for key, _ in BLOCKS]) == [False] * len(BLOCKS)


def test_a_broken_device_says_so_rather_than_blame_the_memory(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    array = device_array(4096)
    other = device_array(SIZE, device=1)
    driver.break_device(0, ILLEGAL_ADDRESS)
    for use in (
        lambda: client.write_cache(array, [("k", 0)], 4096),
        lambda: client.write_segments(["k"], one_segment(array.address)),
    ):
        with pytest.raises(SetupError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
            use()
    other.upload(pattern(SIZE, 2))  # which is on a device that works
    segments = one_segment(other.address, SIZE, device=1)
    assert client.write_segments(["k"], segments).wait(20).all_ok


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_gpu_that_fails_leaves_the_requests_of_others_alone(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, connect: Any, verb: str
) -> None:
    """Those that wait for keys are in flight beside it, on every channel."""
    data = pattern(SIZE, 1)
    assert client.write_cache(data, BLOCKS, BLOCK).wait(20).all_ok
    later = [(f"later {n}", 0) for n in range(8)]
    half = np.arange(8, dtype=np.uint8)
    writer = connect()
    writer.write_cache(half, later, 8, value_bytes=16)  # so that readers wait for the rest
    writer.sync()
    back = np.zeros(16 * len(later), np.uint8)
    waiting = client.read_cache(
        back, [(key, 16 * n) for n, (key, _) in enumerate(later)], 16, wait_s=20
    )
    array = device_array(SIZE)
    driver.fail("kernel", LAUNCH_FAILED)
    if verb == "read":
        outcomes = client.read_cache(array, BLOCKS, BLOCK).wait(20)
    else:
        outcomes = client.write_cache(array, BLOCKS, BLOCK, on_exists="replace").wait(20)
    assert outcomes.failed
    assert not waiting.done
    writer.write_cache(half, later, 8, value_bytes=16, value_offset=8)
    writer.sync()
    assert waiting.wait(20).all_ok
    assert np.array_equal(back, np.tile(half, 2 * len(later)))
    assert client.stats()["client_disconnects"] == 0
    assert client.read_cache(data, BLOCKS, BLOCK).wait(20).all_ok
    assert np.array_equal(data, pattern(SIZE, 1))


# ---- the server: a long batch wakes it, and its first request leaves from the caller ----

LONG = [(f"long{i}", 4 * i) for i in range(2_000)]


@pytest.mark.parametrize("verb", ["write_cache", "read_cache"])
def test_a_server_that_stands_still_ends_a_long_batch(
    verb: str, device_array: Arrays, start_server: Any, connect: Any
) -> None:
    server = start_server()
    client = connect(server, transport="shm", progress_timeout_s=0.3)
    array = device_array(8_000).upload(pattern(8_000, 1))
    assert client.write_cache(array, LONG, 4).wait(20).all_ok
    freeze(server.pid)
    batch = getattr(client, verb)(array, LONG, 4)
    outcomes = batch.wait(20)
    os.kill(server.pid, signal.SIGCONT)
    assert set(outcomes) == {Code.TIMEOUT}
    until(lambda: client.read_cache(array, LONG, 4).wait(20).all_ok)  # by a new connection
    assert np.array_equal(array.download(), pattern(8_000, 1))


@pytest.mark.parametrize("verb", ["write_cache", "read_cache"])
def test_a_server_that_has_died_ends_a_long_batch(
    verb: str, device_array: Arrays, start_server: Any, connect: Any
) -> None:
    server = start_server()
    client = connect(server, transport="shm")
    array = device_array(8_000).upload(pattern(8_000, 1))
    assert client.write_cache(array, LONG, 4).wait(20).all_ok
    server.kill()
    outcomes = getattr(client, verb)(array, LONG, 4).wait(20)
    assert set(outcomes) == {Code.DISCONNECTED}


def test_a_client_that_is_closed_refuses_a_long_batch(
    client: infinistore.Client, device_array: Arrays
) -> None:
    array = device_array(8_000)
    client.close()
    with pytest.raises(InfiniStoreError, match="closed"):
        client.write_cache(array, LONG, 4)


def test_a_gpu_that_is_slow_is_not_the_servers_fault(
    driver: FakeDriver, device_array: Arrays, connect: Any
) -> None:
    """Behind a long kernel a copy waits longer than a server may be silent."""
    client = connect(transport="shm", progress_timeout_s=0.3)
    array = device_array(SIZE).upload(pattern(SIZE, 1))
    driver.hold()
    batch = client.write_cache(array, BLOCKS, BLOCK)
    until(lambda: driver.counter("kernels_waiting") > 0)
    releases = threading.Timer(1.0, driver.release_kernels)
    releases.start()
    outcomes = batch.wait(20)
    releases.join()
    assert outcomes.all_ok, batch.error()
    assert client.stats()["client_timeouts"] == 0
