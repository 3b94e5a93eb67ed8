"""What comes before what: a caller's stream, the copies by a GPU, and who waits for them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import infinistore
from fake_driver import (
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    SUCCESS,
    DeviceArray,
    FakeDriver,
    pattern,
)
from infinistore import Code, Segments
from server_process import ServerProcess
from waiting import until

pytestmark = pytest.mark.usefixtures("no_faults")
Arrays = Callable[..., DeviceArray]
SIZE = 40_000
BLOCK = 4_000
BLOCKS = [(f"k{i}", i * BLOCK) for i in range(SIZE // BLOCK)]


@pytest.fixture
def stream(driver: FakeDriver) -> Iterator[int]:
    made = driver.stream()
    yield made
    driver.reset()
    with driver.on():
        driver.check("cuStreamDestroy_v2", made)


def written(client: infinistore.Client, seed: int = 0) -> np.ndarray:
    """What is stored under BLOCKS."""
    data = pattern(SIZE, 1000 + seed)
    client.write_cache(data, BLOCKS, BLOCK, on_exists="replace")
    client.sync()
    return data


def read_back(client: infinistore.Client) -> np.ndarray:
    target = np.zeros(SIZE, np.uint8)
    client.read_cache(target, BLOCKS, BLOCK)
    client.sync()
    return target


def test_a_write_takes_what_the_computation_before_it_leaves(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, stream: int
) -> None:
    source = device_array(SIZE, stream=stream).upload(np.zeros(SIZE, np.uint8))
    ticket = driver.enqueue_wait(stream)
    driver.enqueue_fill(stream, source.address, SIZE, 7)
    batch = client.write_cache(source, BLOCKS, BLOCK)
    # Others go on meanwhile, and nothing of the batch is seen.
    other = np.ones(SIZE, np.uint8)
    assert client.write_cache(other, [("other", 0)], SIZE).wait(20).all_ok
    assert client.exists(["k0", "k9", "other"]) == [False, False, True]
    assert not batch.done
    driver.release(ticket)
    assert batch.wait(20).all_ok
    driver.enqueue_fill(stream, source.address, SIZE, 8)  # ours again: it may be overwritten
    driver.synchronize(stream)
    assert np.array_equal(read_back(client), pattern(SIZE, 7))


def test_a_read_waits_for_the_work_that_uses_its_target(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, stream: int
) -> None:
    value = written(client)
    old = pattern(SIZE, 1)
    target = device_array(SIZE, stream=stream).upload(old)
    kept = device_array(SIZE)
    ticket = driver.enqueue_wait(stream)
    with driver.on():
        driver.check("cuMemcpyDtoDAsync_v2", kept.address, target.address, SIZE, stream)
    driver.enqueue_fill(stream, target.address, SIZE, 2)
    batch = client.read_cache(target, BLOCKS, BLOCK)
    assert client.exists(["k0"]) == [True]
    assert not batch.done
    driver.release(ticket)
    assert batch.wait(20).all_ok
    assert np.array_equal(target.download(), value)
    assert np.array_equal(kept.download(), old)


@pytest.mark.parametrize("name", [None, LEGACY_STREAM, PER_THREAD_STREAM])
def test_the_default_streams_are_waited_for_by_their_names(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, name: int | None
) -> None:
    source = device_array(SIZE, stream=name).upload(np.zeros(SIZE, np.uint8))
    handle = name or 0
    ticket = driver.enqueue_wait(handle)
    driver.enqueue_fill(handle, source.address, SIZE, 3)
    batch = client.write_cache(source, BLOCKS, BLOCK)
    assert client.exists(["k0"]) == [False]
    driver.release(ticket)
    assert batch.wait(20).all_ok
    assert np.array_equal(read_back(client), pattern(SIZE, 3))


@pytest.mark.parametrize("by_copy_engine", [False, True])
def test_segments_name_their_stream(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, by_copy_engine: bool
) -> None:
    stream = driver.stream(1)
    source = device_array(SIZE, device=1)
    ticket = driver.enqueue_wait(stream, device=1)
    driver.enqueue_fill(stream, source.address, SIZE, 4, device=1)
    rows = np.array([source.address + at for _, at in BLOCKS], np.uint64)
    segments = Segments(rows, BLOCK, source, device=1, stream=stream, by_copy_engine=by_copy_engine)
    batch = client.write_segments([key for key, _ in BLOCKS], segments)
    assert client.exists(["k0"]) == [False]
    driver.release(ticket)
    assert batch.wait(20).all_ok
    driver.enqueue_fill(stream, source.address, SIZE, 5, device=1)
    assert np.array_equal(read_back(client), pattern(SIZE, 4))


def test_a_stream_that_waits_holds_up_no_other(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    """Also with more streams than the client has waiters of its own."""
    streams = [driver.stream() for _ in range(40)]
    tickets, batches = [], []
    for number, stream in enumerate(streams):
        source = device_array(4096, stream=stream)
        tickets.append(driver.enqueue_wait(stream))
        driver.enqueue_fill(stream, source.address, 4096, number)
        batches.append(client.write_cache(source, [(f"s{number}", 0)], 4096))
    for number in reversed(range(40)):
        driver.release(tickets[number])
        assert batches[number].wait(20).all_ok
        assert [batch.done for batch in batches] == [n >= number for n in range(40)]
    target = np.zeros(40 * 4096, np.uint8)
    client.read_cache(target, [(f"s{n}", n * 4096) for n in range(40)], 4096)
    client.sync()
    for number in range(40):
        assert np.array_equal(target[number * 4096 :][:4096], pattern(4096, number))


def test_the_array_is_kept_until_its_batch_is_done(
    driver: FakeDriver, client: infinistore.Client, stream: int
) -> None:
    source = DeviceArray(driver, SIZE, stream=stream)
    address = source.address
    there = weakref.ref(source)
    ticket = driver.enqueue_wait(stream)
    client.write_cache(source, BLOCKS, BLOCK)
    del source
    gc.collect()
    assert there() is not None
    driver.release(ticket)
    client.sync()
    gc.collect()
    assert there() is None
    with driver.on():
        driver.check("cuMemFree_v2", address)


# ---- what ends early ----


def test_a_batch_that_waits_for_its_stream_is_cancelled_at_once(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, stream: int
) -> None:
    value = written(client)
    target = device_array(SIZE, stream=stream)
    ticket = driver.enqueue_wait(stream)
    driver.enqueue_fill(stream, target.address, SIZE, 5)
    batch = client.read_cache(target, BLOCKS, BLOCK)
    batch.cancel()
    assert set(batch.wait(20)) == {Code.CANCELLED}
    driver.release(ticket)
    driver.synchronize(stream)
    assert read_back(client).tobytes() == value.tobytes()  # the client has done all it had to
    assert np.array_equal(target.download(), pattern(SIZE, 5))  # and nothing of the batch


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_cancelled_batch_is_done_once_the_gpu_is(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client, verb: str
) -> None:
    value = written(client)
    array = device_array(SIZE).upload(pattern(SIZE, 6))
    driver.hold()
    if verb == "read":
        batch = client.read_cache(array, BLOCKS, BLOCK)
    else:
        batch = client.write_cache(array, BLOCKS, BLOCK, on_exists="replace")
    until(lambda: driver.counter("kernels_waiting") > 0)
    batch.cancel()
    assert client.exists(["k0"]) == [True]  # the cancellation has come to the client's thread
    assert not batch.done
    driver.release_kernels()
    outcomes = list(batch.wait(20))
    assert set(outcomes) <= {Code.CANCELLED, Code.OK}
    assert Code.CANCELLED in outcomes
    driver.reset()
    with driver.on():  # ours again, even to be freed: a late kernel would end its context
        assert driver.call("cuMemFree_v2", array.address) == SUCCESS
    expected = value.copy()
    for (_, at), outcome in zip(BLOCKS, outcomes, strict=True):
        if verb == "write" and outcome == Code.OK:  # it was over before the cancellation
            expected[at : at + BLOCK] = pattern(SIZE, 6)[at : at + BLOCK]
    assert np.array_equal(read_back(client), expected)


def test_a_client_closes_though_a_stream_never_gets_so_far(
    driver: FakeDriver, device_array: Arrays, server: ServerProcess, stream: int
) -> None:
    client = infinistore.connect(server.url, "closes", transport="shm")
    value = written(client)
    target = device_array(SIZE, stream=stream)
    ticket = driver.enqueue_wait(stream)
    driver.enqueue_fill(stream, target.address, SIZE, 9)
    reading = client.read_cache(target, BLOCKS, BLOCK)
    writing = client.write_cache(target, [("never", 0)], SIZE)
    client.close()
    assert set(reading.wait(20)) | set(writing.wait(20)) == {Code.CLOSED}
    assert driver.counter("registered_bytes") == 0
    driver.release(ticket)
    driver.synchronize(stream)
    assert np.array_equal(target.download(), pattern(SIZE, 9))
    with infinistore.connect(server.url, "closes") as again:
        assert again.exists(["never"]) == [False]
        assert np.array_equal(read_back(again), value)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("verb", ["read", "write"])
def test_closing_waits_for_what_the_gpu_has_begun(
    driver: FakeDriver, device_array: Arrays, server: ServerProcess, transport: str, verb: str
) -> None:
    space = f"begun-{transport}-{verb}"
    client = infinistore.connect(server.url, space, transport=transport, progress_timeout_s=30)
    written(client)
    array = device_array(SIZE).upload(pattern(SIZE, 6))
    driver.hold()
    if verb == "read":
        batch = client.read_cache(array, BLOCKS, BLOCK)
    else:
        batch = client.write_cache(array, BLOCKS, BLOCK, on_exists="replace")
    until(lambda: driver.counter("kernels_waiting") > 0)
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    assert not batch.done
    driver.release_kernels()
    closing.join(20)
    assert not closing.is_alive()
    outcomes = set(batch.wait(0))
    assert Code.CLOSED in outcomes
    assert outcomes <= {Code.CLOSED, Code.OK}  # another channel may have got so far
    array.free()
    driver.reset()
    assert driver.counter("registered_bytes") == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_server_that_is_killed_during_a_copy(
    driver: FakeDriver,
    device_array: Arrays,
    start_server: Callable[..., ServerProcess],
    transport: str,
    verb: str,
) -> None:
    server = start_server()
    client = infinistore.connect(server.url, transport=transport, progress_timeout_s=30)
    value = written(client)
    array = device_array(SIZE).upload(pattern(SIZE, 6))
    driver.hold()
    if verb == "read":
        batch = client.read_cache(array, BLOCKS, BLOCK)
    else:
        batch = client.write_cache(array, BLOCKS, BLOCK, on_exists="replace")
    until(lambda: driver.counter("kernels_waiting") > 0)
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    assert not batch.done
    driver.release_kernels()
    outcomes = batch.wait(20)
    assert set(outcomes) <= {Code.DISCONNECTED, Code.OK}
    if (verb, transport) != ("read", "tcp"):  # whose bytes had all come
        assert Code.OK not in outcomes
    bytes_now = array.download()
    for (_, at), outcome in zip(BLOCKS, outcomes, strict=True):
        if outcome == Code.OK:
            assert np.array_equal(bytes_now[at : at + BLOCK], value[at : at + BLOCK])
    with driver.on():
        assert driver.call("cuMemFree_v2", array.address) == SUCCESS
    client.close()
    driver.reset()
    assert driver.counter("registered_bytes") == 0


def test_a_server_that_is_killed_while_a_batch_waits_for_its_stream(
    driver: FakeDriver,
    device_array: Arrays,
    start_server: Callable[..., ServerProcess],
    stream: int,
) -> None:
    server = start_server()
    client = infinistore.connect(server.url, transport="shm")
    array = device_array(SIZE, stream=stream)
    ticket = driver.enqueue_wait(stream)
    batch = client.write_cache(array, BLOCKS, BLOCK)
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    driver.release(ticket)
    assert set(batch.wait(20)) == {Code.DISCONNECTED}
    client.close()


# ---- many at once ----


def test_threads_and_devices_at_once(
    driver: FakeDriver, device_array: Arrays, server: ServerProcess
) -> None:
    """Each with a stream of its own, whose work makes what it writes and soils what it reads."""
    wrong: list[str] = []
    driver.delay_us(200)

    def work(number: int) -> None:
        device = number % 2
        transport = ("shm", "tcp")[number // 2 % 2]
        stream = driver.stream(device)
        source = device_array(SIZE, device=device, stream=stream)
        target = device_array(SIZE, device=device, stream=stream)
        with infinistore.connect(
            server.url, "crowd", transport=transport, progress_timeout_s=30
        ) as client:
            for turn in range(15):
                blocks = [(f"{number}-{turn}-{key}", at) for key, at in BLOCKS]
                seed = 100 * number + turn
                driver.enqueue_fill(stream, source.address, SIZE, seed, device=device)
                client.write_cache(source, blocks, BLOCK).wait(30)
                driver.enqueue_fill(stream, target.address, SIZE, 1, device=device)
                outcomes = client.read_cache(target, blocks, BLOCK).wait(30)
                if not outcomes.all_ok or not np.array_equal(
                    target.download(), pattern(SIZE, seed)
                ):
                    wrong.append(f"{number}-{turn}")
                client.delete([key for key, _ in blocks])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_one_client_serves_threads_with_gpus_and_without(
    driver: FakeDriver, device_array: Arrays, client: infinistore.Client
) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        blocks = [(f"{number}-{key}", at) for key, at in BLOCKS]
        on_gpu = device_array(SIZE, device=number % 2)
        for turn in range(20):
            data = pattern(SIZE, 100 * number + turn)
            if (number + turn) % 2:
                client.write_cache(on_gpu.upload(data), blocks, BLOCK, on_exists="replace").wait(30)
                back = np.zeros(SIZE, np.uint8)
                client.read_cache(back, blocks, BLOCK).wait(30)
            else:
                client.write_cache(data, blocks, BLOCK, on_exists="replace").wait(30)
                client.read_cache(on_gpu, blocks, BLOCK).wait(30)
                back = on_gpu.download()
            if not np.array_equal(back, data):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
