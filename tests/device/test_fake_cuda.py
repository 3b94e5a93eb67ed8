"""The double of CUDA's driver does what the documentation says that the product relies on."""

from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driver_facts import EXPECTED
from fake_driver import (
    ALREADY_REGISTERED,
    ALWAYS,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    LAUNCH_FAILED,
    LEGACY_STREAM,
    NOT_FOUND,
    NOT_PERMITTED,
    NOT_READY,
    NOT_REGISTERED,
    PER_THREAD_STREAM,
    PORTABLE,
    SUCCESS,
    DeviceArray,
    FakeDriver,
    HostFunction,
    Launcher,
    PinnedArray,
    pattern,
)
from waiting import until

Arrays = Callable[..., DeviceArray]


@pytest.fixture
def launcher(driver: FakeDriver) -> Any:
    made = Launcher(driver)
    yield made
    driver.reset()
    made.close()


@pytest.fixture
def stream(driver: FakeDriver) -> Any:
    made = driver.stream()
    yield made
    driver.reset()
    with driver.on():
        driver.check("cuStreamDestroy_v2", made)


def sum_of(data: bytes, position: int) -> int:
    """docs/protocol.md section 6, in a third language."""
    total = 0
    for at in range(0, len(data), 8):
        word = int.from_bytes(data[at : at + 8], "little")
        x = word ^ ((position + at + 1) * 0x9E3779B97F4A7C15 % 2**64)
        total += x % 2**32 * (x // 2**32) + (word >> 32 | word << 32) % 2**64
    return total % 2**64


def query(driver: FakeDriver, event: int) -> int:
    return driver.call("cuEventQuery", event)


def record(driver: FakeDriver, stream: int) -> int:
    event = driver.event()
    with driver.on():
        driver.check("cuEventRecord", event, stream)
    return event


# ---- contexts ----


def test_a_call_without_a_context_is_refused(driver: FakeDriver) -> None:
    event = driver.event()
    handle = ctypes.byref(ctypes.c_uint64())

    def refused() -> None:
        assert driver.call("cuEventCreate", handle, 0) == INVALID_CONTEXT
        assert driver.call("cuMemAlloc_v2", handle, 64) == INVALID_CONTEXT
        assert driver.call("cuEventRecord", event, 0) == INVALID_CONTEXT
        assert driver.call("cuCtxPopCurrent_v2", handle) == INVALID_CONTEXT
        assert query(driver, event) == SUCCESS  # needs none: so says its documentation
        with driver.on(1):
            driver.check("cuCtxGetCurrent", handle)
        done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=refused)
    with driver.on(0):  # which is the main thread's alone
        thread.start()
        thread.join()
    assert done


def test_contexts_are_a_stack(driver: FakeDriver) -> None:
    def current() -> int:
        return driver.made("cuCtxGetCurrent")

    before = current()
    with driver.on(0):
        assert current() == driver.contexts[0]
        with driver.on(1):
            assert current() == driver.contexts[1]
        assert current() == driver.contexts[0]
    assert current() == before
    assert driver.call("cuCtxPushCurrent_v2", 4096) == INVALID_CONTEXT
    assert driver.call("cuDeviceGet", ctypes.byref(ctypes.c_int()), 2) != SUCCESS


# ---- memory ----


def test_a_host_that_touches_a_devices_memory_dies(driver: FakeDriver) -> None:
    body = (
        "import ctypes, numpy as np\n"
        "from fake_driver import DeviceArray, FakeDriver\n"
        "array = DeviceArray(FakeDriver(), 4096).upload(np.ones(4096, np.uint8))\n"
        "assert array.download().all()\n"
        "print('so far', flush=True)\n"
        "ctypes.string_at(array.address, 1)\n"
    )
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, check=False, cwd=tests
    )
    assert done.stdout == "so far\n", done.stderr
    assert done.returncode == -signal.SIGSEGV


def test_pointers_tell_whose_they_are(driver: FakeDriver, device_array: Arrays) -> None:
    array = device_array(5000, device=1)

    def facts(address: int) -> list[int]:
        with driver.on():
            return [driver.made("cuPointerGetAttribute", n, address) for n in (2, 9, 1, 11, 12)]

    assert facts(array.address) == [2, 1, driver.contexts[1], array.address, 5000]
    assert facts(array.address + 4999) == facts(array.address)
    pinned = PinnedArray(driver, 100, np.uint8)
    assert facts(pinned.address)[0] == 1
    pinned.free()
    array.free()
    other = np.zeros(1)
    value = ctypes.byref(ctypes.c_uint64())
    with driver.on():
        for address in (array.address, pinned.address, other.ctypes.data, 0):
            assert driver.call("cuPointerGetAttribute", value, 2, address) == INVALID_VALUE


def test_registrations_are_kept_apart_and_counted(driver: FakeDriver) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    half = 1 << 19
    with driver.on():
        driver.check("cuMemHostRegister_v2", address, half, PORTABLE)
        for begin, size in ((address, half), (address + half - 1, 2), (address, 1 << 20)):
            status = driver.call("cuMemHostRegister_v2", begin, size, PORTABLE)
            assert status == ALREADY_REGISTERED
        driver.check("cuMemHostRegister_v2", address + half, half, PORTABLE)
        assert driver.counter("registered_bytes") == 1 << 20
        assert driver.counter("registered_ranges") == 2
        assert driver.call("cuMemHostUnregister", address + 4096) == NOT_REGISTERED
        driver.check("cuMemHostUnregister", address)
        assert driver.call("cuMemHostUnregister", address) == NOT_REGISTERED
        driver.check("cuMemHostUnregister", address + half)
        assert driver.counter("registered_bytes") == 0
        assert driver.call("cuMemHostRegister_v2", 1 << 45, 4096, PORTABLE) == INVALID_VALUE


def test_memory_that_may_not_be_written_cannot_be_registered(driver: FakeDriver) -> None:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    with driver.on():
        assert driver.call("cuMemHostRegister_v2", address, 4096, PORTABLE) == INVALID_VALUE
    assert driver.counter("registered_bytes") == 0


# ---- streams and events ----


def test_work_of_a_stream_is_done_in_order(
    driver: FakeDriver, device_array: Arrays, stream: int
) -> None:
    array = device_array(4096).upload(np.zeros(4096, np.uint8))
    ticket = driver.enqueue_wait(stream)
    driver.enqueue_fill(stream, array.address, 4096, 1)
    event = record(driver, stream)
    driver.enqueue_fill(stream, array.address, 4096, 2)
    assert query(driver, event) == NOT_READY
    assert not array.download().any()  # the default stream does not wait for this one
    driver.release(ticket)
    driver.synchronize(stream)
    assert query(driver, event) == SUCCESS
    assert np.array_equal(array.download(), pattern(4096, 2))


def test_an_event_marks_what_was_queued_before_it(driver: FakeDriver, stream: int) -> None:
    first = driver.enqueue_wait(stream)
    event = record(driver, stream)
    second = driver.enqueue_wait(stream)
    driver.release(first)
    until(lambda: query(driver, event) == SUCCESS)
    with driver.on():  # recorded again, it marks another place
        driver.check("cuEventRecord", event, stream)
    assert query(driver, event) == NOT_READY
    driver.release(second)
    with driver.on():
        driver.check("cuEventSynchronize", event)
    assert query(driver, event) == SUCCESS


def test_an_event_never_recorded_counts_as_reached(driver: FakeDriver, stream: int) -> None:
    event = driver.event()
    assert query(driver, event) == SUCCESS
    with driver.on():
        driver.check("cuStreamWaitEvent", stream, event, 0)
        driver.check("cuEventDestroy_v2", event)
        assert driver.call("cuEventDestroy_v2", event) == INVALID_HANDLE
    driver.synchronize(stream)
    assert query(driver, event) == INVALID_HANDLE


def test_a_stream_waits_for_the_record_that_an_event_had(driver: FakeDriver, stream: int) -> None:
    other = driver.stream()
    ticket = driver.enqueue_wait(stream)
    event = record(driver, stream)
    with driver.on():
        driver.check("cuStreamWaitEvent", other, event, 0)
    behind = record(driver, other)
    later = driver.enqueue_wait(stream)
    with driver.on():
        driver.check("cuEventRecord", event, stream)  # too late for the wait
    assert query(driver, behind) == NOT_READY
    driver.release(ticket)
    until(lambda: query(driver, behind) == SUCCESS)
    assert query(driver, event) == NOT_READY
    driver.release(later)
    with driver.on():
        driver.check("cuStreamDestroy_v2", other)
        assert driver.call("cuStreamSynchronize", other) == INVALID_HANDLE


@pytest.mark.parametrize("name", [0, LEGACY_STREAM])
def test_the_default_stream_and_blocking_ones_wait_for_each_other(
    driver: FakeDriver, stream: int, name: int
) -> None:
    blocking = driver.stream(flags=0)
    ticket = driver.enqueue_wait(blocking)
    event = record(driver, name)
    assert query(driver, event) == NOT_READY
    free = record(driver, stream)  # non-blocking: it stays apart
    assert query(driver, free) == SUCCESS
    behind = record(driver, PER_THREAD_STREAM)  # behind the default one
    assert query(driver, behind) == NOT_READY
    driver.release(ticket)
    until(lambda: query(driver, behind) == SUCCESS)
    assert query(driver, event) == SUCCESS


def test_host_functions_come_in_order_and_may_not_call_cuda(
    driver: FakeDriver, device_array: Arrays, stream: int
) -> None:
    array = device_array(64).upload(np.zeros(64, np.uint8))
    event = driver.event()
    seen: list[Any] = []

    def come(data: int | None) -> None:
        seen.append(data)
        seen.append(query(driver, event))
        seen.append(driver.call("cuStreamSynchronize", stream))

    function = HostFunction(come)
    ticket = driver.enqueue_wait(stream)
    driver.enqueue_fill(stream, array.address, 64, 3)
    with driver.on():
        driver.check("cuLaunchHostFunc", stream, function, 7)
        driver.check("cuLaunchHostFunc", stream, function, 8)
    assert seen == []
    driver.release(ticket)
    driver.synchronize(stream)
    assert seen == [7, NOT_PERMITTED, NOT_PERMITTED, 8, NOT_PERMITTED, NOT_PERMITTED]
    assert np.array_equal(array.download(), pattern(64, 3))


# ---- kernels ----


@pytest.mark.parametrize("size", [1, 7, 8, 16, 24, 4096, 8192])
@pytest.mark.parametrize("sums", ["", "_summed"])
def test_a_kernel_moves_bytes_and_sums_them(
    driver: FakeDriver, device_array: Arrays, launcher: Launcher, stream: int, size: int, sums: str
) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    array = device_array(size + 5).upload(np.zeros(size + 5, np.uint8))
    host = PinnedArray(driver, size, np.uint8)
    host.array[:] = data
    launcher.results.array[0] = 1
    launcher.launch("tiles_to_device" + sums, stream, (array.address + 3, host.address, 40, size))
    driver.synchronize(stream)
    assert np.array_equal(array.download()[3 : size + 3], data)
    assert not array.download()[[0, 1, 2, -2, -1]].any()
    wanted = 1
    if sums:
        whole = data.tobytes()
        wanted = int.from_bytes(whole, "little") if size < 8 else sum_of(whole, 40)
    assert launcher.results.array[0] == wanted
    host.array[:] = 0
    launcher.launch("tiles_to_host" + sums, stream, (array.address + 3, host.address, 40, size))
    driver.synchronize(stream)
    assert np.array_equal(host.array, data)
    assert launcher.results.array[0] == wanted
    host.free()


def test_a_kernel_reads_its_tiles_when_it_runs(
    driver: FakeDriver, device_array: Arrays, launcher: Launcher, stream: int
) -> None:
    """As a GPU does, so that a list that is reused too early shows."""
    array = device_array(64).upload(np.arange(64, dtype=np.uint8))
    host = PinnedArray(driver, 64, np.uint8)
    driver.hold()
    launcher.launch("tiles_to_host", stream, (array.address, host.address, 0, 64))
    until(lambda: driver.counter("kernels_waiting") == 1)
    launcher.tiles.array[0] = (array.address, host.address, 0, 8, 0)
    event = record(driver, stream)
    assert query(driver, event) == NOT_READY
    before = driver.counter("bytes_to_host")
    driver.release_kernels()
    driver.synchronize(stream)
    assert driver.counter("bytes_to_host") - before == 8
    assert host.array.tolist() == [*range(8), *[0] * 56]
    host.free()


def test_launches_that_no_gpu_of_ours_takes_are_refused(
    driver: FakeDriver, launcher: Launcher, stream: int
) -> None:
    for grid, block in ((17, 512), (0, 512), (16, 1056), (16, 0), (1, 33)):
        assert launcher.status("tiles_to_host", stream, 0, grid, block) == INVALID_VALUE
    assert launcher.status("tiles_to_host", 12345, 0) == INVALID_HANDLE
    elsewhere = driver.stream(1)
    assert launcher.status("tiles_to_host", elsewhere, 0) == INVALID_HANDLE
    handle = ctypes.byref(ctypes.c_uint64())
    with driver.on():
        assert driver.call("cuModuleLoadData", handle, b"no ptx") != SUCCESS
        name = b"tiles_to_nowhere"
        assert driver.call("cuModuleGetFunction", handle, launcher.module, name) == NOT_FOUND


def sticks(driver: FakeDriver, stream: int, event: int, error: int) -> None:
    """Every call in the context fails, its streams do nothing any more, and other contexts work."""
    until(lambda: query(driver, event) == error)
    handle = ctypes.byref(ctypes.c_uint64())
    called: list[int] = []
    function = HostFunction(lambda _: called.append(1))
    with driver.on():
        assert driver.call("cuStreamSynchronize", stream) == error
        assert driver.call("cuEventCreate", handle, 0) == error
        assert driver.call("cuMemHostAlloc", handle, 64, 0) == error
        assert driver.call("cuLaunchHostFunc", stream, function, 0) == error
    assert called == []
    assert query(driver, driver.event(1)) == SUCCESS


@pytest.fixture
def event(driver: FakeDriver) -> int:
    return driver.event()


@pytest.mark.parametrize("what", ["host", "host end", "device", "device end", "freed", "other's"])
def test_an_address_that_no_gpu_could_use_ends_its_context(
    driver: FakeDriver,
    device_array: Arrays,
    launcher: Launcher,
    stream: int,
    event: int,
    what: str,
) -> None:
    array = device_array(4096)
    other = device_array(4096, device=1)
    host = PinnedArray(driver, 4096, np.uint8)
    plain = np.zeros(4096, np.uint8)
    tile = {
        "host": (array.address, plain.ctypes.data, 0, 4096),
        "host end": (array.address, host.address + 8, 0, 4096),
        "device": (plain.ctypes.data, host.address, 0, 4096),
        "device end": (array.address + 8, host.address, 0, 4096),
        "freed": (array.address, host.address, 0, 4096),
        "other's": (other.address, host.address, 0, 4096),
    }[what]
    faults = driver.counter("faults")
    driver.hold()
    launcher.launch("tiles_to_device", stream, tile)
    called: list[int] = []
    function = HostFunction(lambda _: called.append(1))
    with driver.on():
        driver.check("cuLaunchHostFunc", stream, function, 0)
    if what == "freed":
        array.free()
    driver.release_kernels()
    sticks(driver, stream, event, ILLEGAL_ADDRESS)
    assert called == []  # queued behind the kernel: it never comes
    assert driver.counter("faults") == faults + 1
    driver.reset()
    driver.synchronize(stream)
    host.free()


def test_a_tile_of_a_length_that_the_kernel_cannot_do_is_found(
    driver: FakeDriver, device_array: Arrays, launcher: Launcher, stream: int, event: int
) -> None:
    array = device_array(64)
    launcher.launch("tiles_to_host", stream, (array.address, launcher.results.address, 0, 12))
    sticks(driver, stream, event, LAUNCH_FAILED)


def test_memory_that_is_not_portable_is_its_contexts_alone(
    driver: FakeDriver, device_array: Arrays
) -> None:
    for flags, wanted in ((PORTABLE, SUCCESS), (0, ILLEGAL_ADDRESS)):
        far = Launcher(driver, device=1, flags=flags)  # pinned by the context of device 0
        array = device_array(64, device=1)
        stream = driver.stream(1)
        far.launch("tiles_to_host", stream, (array.address, far.results.address, 0, 64))
        with driver.on(1):
            assert driver.call("cuStreamSynchronize", stream) == wanted
        driver.reset()
        far.close()


def test_adjoining_registrations_are_as_good_as_one(
    driver: FakeDriver, device_array: Arrays, launcher: Launcher, stream: int
) -> None:
    memory = mmap.mmap(-1, 8192)
    host = np.frombuffer(memory, np.uint8)
    array = device_array(8192).upload(pattern(8192, 5))
    with driver.on():
        for half in (0, 4096):
            driver.check("cuMemHostRegister_v2", host.ctypes.data + half, 4096, PORTABLE)
        launcher.launch("tiles_to_host", stream, (array.address, host.ctypes.data, 0, 8192))
        driver.check("cuStreamSynchronize", stream)
        for half in (0, 4096):
            driver.check("cuMemHostUnregister", host.ctypes.data + half)
    assert np.array_equal(host, pattern(8192, 5))


# ---- a test's knobs ----


def test_a_call_fails_once_when_told_to(driver: FakeDriver) -> None:
    driver.fail("cuEventCreate", 2, passing=1)
    handle = ctypes.byref(ctypes.c_uint64())
    with driver.on():
        statuses = [driver.call("cuEventCreate", handle, 0) for _ in range(3)]
        assert statuses == [SUCCESS, 2, SUCCESS]
        driver.fail("cuEventCreate", 2, passing=ALWAYS)
        assert {driver.call("cuEventCreate", handle, 0) for _ in range(3)} == {2}
        driver.reset()
        driver.check("cuEventCreate", handle, 0)


def test_a_kernel_fails_when_told_to(
    driver: FakeDriver, launcher: Launcher, stream: int, event: int
) -> None:
    driver.fail("kernel", LAUNCH_FAILED)
    launcher.launch("tiles_to_host", stream)
    sticks(driver, stream, event, LAUNCH_FAILED)
    driver.reset()
    launcher.launch("tiles_to_host", stream)
    driver.synchronize(stream)


def test_what_is_held_when_a_context_fails_ends(
    driver: FakeDriver, launcher: Launcher, stream: int, event: int
) -> None:
    driver.hold(stream)
    launcher.launch("tiles_to_host", stream)
    driver.break_device(0)
    sticks(driver, stream, event, ILLEGAL_ADDRESS)
    until(lambda: driver.counter("kernels_waiting") == 0)


def test_names_of_errors(driver: FakeDriver) -> None:
    name = ctypes.c_char_p()
    assert driver.call("cuGetErrorName", ILLEGAL_ADDRESS, ctypes.byref(name)) == SUCCESS
    assert name.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    assert driver.call("cuGetErrorName", 12345, ctypes.byref(name)) == INVALID_VALUE
    assert name.value is None


@pytest.mark.parametrize(("devices", "says"), [("0", "100"), ("3", "3 devices")])
def test_the_environment_says_how_many_devices_there_are(devices: str, says: str) -> None:
    body = "from fake_driver import FakeDriver; print(FakeDriver().device_count, 'devices')"
    done = subprocess.run(
        [sys.executable, "-c", body],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
        env={"FAKE_CUDA_DEVICES": devices},
    )
    assert says in done.stdout + done.stderr


def test_the_double_answers_what_the_driver_is_expected_to() -> None:
    """`python tests/driver_facts.py libcuda.so.1` compares a true one."""
    command = [sys.executable, "driver_facts.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "expected" not in done.stdout
    assert len(done.stdout.splitlines()) == len(EXPECTED)
