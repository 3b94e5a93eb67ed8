"""Nodes of a cluster that die, hang, come back, flap and replace each other."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import infinistore
from cluster_nodes import InProcessCluster, InProcessNode
from cluster_process import ClusterProcess
from infinistore import AbortedError, Client, Code, ConnectError, LinkError, UsageError
from infinistore.cluster.node.peers import Peers
from infinistore.cluster.node.rate import Rate
from infinistore.cluster.node.transfer import Source, Stored, push
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import group_id, group_of, order
from infinistore.cluster.spread import Replacement
from infinistore.cluster.view import NOTE_KEY, NOTE_NAMESPACE, Note, encode_note
from server_process import ServerProcess
from waiting import freeze, until

PAGE = 4096
COUNT = 96
KEYS = [f"k{index}" for index in range(COUNT)]
BLOCKS = [(key, index * PAGE) for index, key in enumerate(KEYS)]


def noise(seed: int = 0, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count * PAGE, dtype=np.uint8)


Cluster = ClusterProcess | InProcessCluster
Server = ServerProcess | InProcessNode


@pytest.fixture(scope="module")
def processes() -> Iterator[ClusterProcess]:
    """Three processes, which tests stop and let go on; tests stay apart by namespaces."""
    running = ClusterProcess(3)
    yield running
    running.kill()


@pytest.fixture
def cluster(processes: ClusterProcess) -> Iterator[ClusterProcess]:
    """The processes, which all run when the test has ended."""
    yield processes
    for server in processes.servers:
        go_on(server)


@pytest.fixture
def nodes() -> Iterator[InProcessCluster]:
    """Three nodes that a test may kill."""
    running = InProcessCluster(3)
    yield running
    running.kill()


@pytest.fixture
def client(cluster: ClusterProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Of the processes."""
    with infinistore.connect(cluster.url, request.node.name) as made:
        yield made


@pytest.fixture
def nodes_client(nodes: InProcessCluster) -> Iterator[Client]:
    """Of the nodes."""
    with infinistore.connect(nodes.url, "faults") as made:
        yield made


def go_on(server: ServerProcess) -> None:
    os.kill(server.pid, signal.SIGCONT)


def owner_of(cluster: Cluster, key: str) -> Any:
    return order_of(cluster, key)[0]


def order_of(cluster: Cluster, key: str) -> list[Any]:
    nodes = [Node(server.address, server.address) for server in cluster.servers]
    names = [node.name for node in order(group_id(group_of(key.encode())), nodes)]
    return [next(s for s in cluster.servers if s.address == name) for name in names]


def read(client: Client, **how: Any) -> tuple[list[Code], np.ndarray]:
    target = np.zeros(COUNT * PAGE, np.uint8)
    outcomes = client.read_cache(target, BLOCKS, PAGE, **how).wait(20)
    return list(outcomes), target


def assert_right(codes: list[Code], found: np.ndarray, source: np.ndarray) -> None:
    """Every hit has its bytes, and everything else is a miss."""
    assert set(codes) <= {Code.OK, Code.MISSING}
    for index, code in enumerate(codes):
        if code == Code.OK:
            part = slice(index * PAGE, (index + 1) * PAGE)
            assert np.array_equal(found[part], source[part])


def test_a_killed_node_is_a_miss_for_its_keys_and_is_routed_around(
    nodes: InProcessCluster, nodes_client: Client
) -> None:
    check_loss(nodes, nodes_client, InProcessNode.kill)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_stopped_node_is_a_miss_for_its_keys_and_is_routed_around(
    cluster: ClusterProcess, transport: str
) -> None:
    with infinistore.connect(cluster.url, transport, transport=transport) as client:
        check_loss(cluster, client, lambda server: freeze(server.pid))


def check_loss(cluster: Cluster, client: Client, lose: Callable[[Any], None]) -> None:
    source = noise()
    lost = owner_of(cluster, KEYS[0])
    its_own = [owner_of(cluster, key) is lost for key in KEYS]
    client.write_cache(source, BLOCKS, PAGE)
    client.sync()
    lose(lost)
    codes, found = read(client)
    assert codes == [Code.MISSING if own else Code.OK for own in its_own]
    assert_right(codes, found, source)
    assert client.exists(KEYS) == [not own for own in its_own]
    assert client.match_prefix(KEYS) == 0
    kept = [key for key, own in zip(KEYS, its_own, strict=True) if not own]
    assert client.match_prefix(kept) == len(kept)
    # Written again, its keys are at their next nodes, and found there.
    assert client.write_cache(source, BLOCKS, PAGE).wait(20).all_ok
    codes, found = read(client)
    assert codes == [Code.OK] * COUNT
    assert np.array_equal(found, source)
    assert client.match_prefix(KEYS) == COUNT


def test_the_first_right_answer_comes_within_a_second_of_a_hang(
    cluster: ClusterProcess, client: Client, record_figure: Any
) -> None:
    """The node is stopped while calls are on their way; each of them is answered."""
    source = noise()
    client.write_cache(source, BLOCKS, PAGE)
    client.sync()
    ends = threading.Event()
    latencies: list[float] = []

    def load() -> None:
        while not ends.is_set():
            start = time.monotonic()
            codes, found = read(client)
            latencies.append(time.monotonic() - start)
            assert_right(codes, found, source)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(latencies) > 20)
    freeze(cluster.servers[0].pid)
    seen = len(latencies)
    until(lambda: len(latencies) > seen + 60)
    ends.set()
    for thread in threads:
        thread.join()
    slowest_s = max(latencies)
    record_figure("slowest answer at a hang", f"{slowest_s:.2f} s", "< 5 s", ok=slowest_s < 5)
    assert sum(latency > 0.4 for latency in latencies) <= 2 * len(threads)


def test_a_node_that_goes_on_is_used_again_and_finds_what_was_written_meanwhile(
    cluster: ClusterProcess, client: Client
) -> None:
    stopped = cluster.servers[1]
    freeze(stopped.pid)
    source = noise()
    client.write_cache(source, BLOCKS, PAGE)
    client.sync()
    assert client.stats()["cluster_nodes_up"] == 2
    go_on(stopped)
    until(lambda: client.stats()["cluster_nodes_up"] == 3)
    codes, found = read(client)  # some are asked there first, and have moved meanwhile
    assert codes == [Code.OK] * COUNT
    assert np.array_equal(found, source)
    assert client.match_prefix(KEYS) == COUNT
    assert client.delete(KEYS) == COUNT
    assert client.exists(KEYS) == [False] * COUNT


def test_a_server_started_again_at_its_address_is_a_node_again(
    nodes: InProcessCluster, nodes_client: Client
) -> None:
    source = noise()
    nodes_client.write_cache(source, BLOCKS, PAGE)
    nodes_client.sync()
    before = nodes_client.server["nodes"][nodes.servers[2].address]["incarnation"]
    killed = nodes.servers[2]
    killed.kill()
    read(nodes_client)
    again = ServerProcess(f"--port={killed.address.rpartition(':')[2]}")
    nodes.servers[2] = again
    assert again.address == killed.address

    def is_back() -> bool:
        nodes = nodes_client.server["nodes"]
        return nodes_client.stats()["cluster_nodes_up"] == 3 and (
            nodes[again.address]["incarnation"] != before
        )

    until(is_back)
    codes, found = read(nodes_client)
    assert_right(codes, found, source)
    assert nodes_client.write_cache(source, BLOCKS, PAGE).wait(20).all_ok
    codes, found = read(nodes_client)
    assert codes == [Code.OK] * COUNT


def test_a_flapping_node_costs_misses_and_no_wrong_byte(
    cluster: ClusterProcess, client: Client
) -> None:
    source = noise()
    ends = threading.Event()

    def flap() -> None:
        while not ends.is_set():
            freeze(cluster.servers[0].pid)
            ends.wait(0.4)
            go_on(cluster.servers[0])
            ends.wait(0.2)

    flapping = threading.Thread(target=flap)
    flapping.start()
    try:
        for _ in range(12):
            outcomes = client.write_cache(source, BLOCKS, PAGE).wait(20)
            assert outcomes.all_ok
            codes, found = read(client)
            assert_right(codes, found, source)
            client.match_prefix(KEYS)
    finally:
        ends.set()
        flapping.join()
    until(lambda: client.stats()["cluster_nodes_up"] == 3)
    assert client.write_cache(source, BLOCKS, PAGE).wait(20).all_ok
    assert read(client)[0] == [Code.OK] * COUNT


def test_calls_for_other_nodes_do_not_wait_for_one_that_hangs(
    cluster: ClusterProcess, client: Client
) -> None:
    source = noise()
    client.write_cache(source, BLOCKS, PAGE)
    client.sync()
    hanging = owner_of(cluster, KEYS[0])
    other = next(key for key in KEYS if owner_of(cluster, key) is not hanging)
    freeze(hanging.pid)
    waiting = client.read_cache(np.zeros(PAGE, np.uint8), [(KEYS[0], 0)], PAGE)
    for _ in range(20):
        assert client.exists([other]) == [True]
    assert not waiting.done
    assert waiting.wait(10).missing == [0]


def test_while_all_nodes_are_gone_calls_fail_as_with_one_server(
    nodes: InProcessCluster, nodes_client: Client
) -> None:
    nodes_client.write_cache(noise(), BLOCKS, PAGE)
    nodes_client.sync()
    nodes.kill()
    with pytest.raises(LinkError):
        nodes_client.exists(KEYS)
    nodes_client.read_cache(np.zeros(PAGE, np.uint8), [(KEYS[0], 0)], PAGE)
    with pytest.raises(LinkError):
        nodes_client.sync()
    for call in (nodes_client.match_prefix, nodes_client.delete):
        with pytest.raises(LinkError):
            call(KEYS)
    nodes_client.write_cache(noise(), BLOCKS, PAGE)
    with pytest.raises(LinkError):
        nodes_client.sync()
    with pytest.raises(LinkError):
        nodes_client.stats()


def test_nobody_there_is_said_at_once_and_somebody_is_enough(nodes: InProcessCluster) -> None:
    nobody = "infinistore://127.0.0.1:1,127.0.0.1:2"
    with pytest.raises(ConnectError):
        infinistore.connect(nobody)
    with infinistore.connect(f"{nodes.url},127.0.0.1:1") as client:
        assert client.stats()["cluster_nodes"] == 4
        assert client.stats()["cluster_nodes_up"] == 3
        assert client.write_cache(noise(), BLOCKS, PAGE).wait(20).all_ok
        assert read(client)[0] == [Code.OK] * COUNT
    with pytest.raises(UsageError, match="replicas is 2"):
        infinistore.connect(nodes.servers[0].url, replicas=2)
    with pytest.raises(UsageError, match="replicas is 0"):
        infinistore.connect(nodes.url, replicas=0)


def test_replicas_survive_a_crash_without_a_miss(nodes: InProcessCluster) -> None:
    source = noise()
    with infinistore.connect(nodes.url, "replicas", replicas=2) as client:
        client.write_cache(source, BLOCKS, PAGE)
        client.sync()
        assert nodes.stats()["seals"] == 2 * COUNT
        nodes.servers[0].kill()
        codes, found = read(client)
        assert codes == [Code.OK] * COUNT
        assert np.array_equal(found, source)
        assert client.match_prefix(KEYS) == COUNT
        lookup = client.lookup(KEYS, lease_s=10)
        assert (lookup.wait(10), len(lookup.lease_ids)) == (COUNT, 1)
        client.release(lookup.lease_ids)


def test_a_value_in_ranges_fails_once_with_its_node_and_then_begins_anew(
    nodes: InProcessCluster, nodes_client: Client
) -> None:
    source = noise(count=2)
    parts = {"value_bytes": 2 * PAGE}
    nodes_client.write_cache(source, [("k", 0)], PAGE, **parts)
    nodes_client.sync()
    owner_of(nodes, "k").kill()
    until(lambda: nodes_client.stats()["cluster_nodes_up"] == 2)
    nodes_client.write_cache(source, [("k", PAGE)], PAGE, value_offset=PAGE, **parts)
    with pytest.raises((AbortedError, LinkError)):
        nodes_client.sync()
    for offset in (0, PAGE):
        nodes_client.write_cache(source, [("k", offset)], PAGE, value_offset=offset, **parts)
        nodes_client.sync()
    assert nodes_client.exists(["k"]) == [True]


def test_a_replaced_value_is_nowhere_read_again(cluster: ClusterProcess, client: Client) -> None:
    """It lies on the next node, too, from a time when the owner was away."""
    old, new = noise(1), noise(2)
    owner = owner_of(cluster, "k")
    freeze(owner.pid)
    client.write_cache(old, [("k", 0)], PAGE)
    client.sync()
    client.write_cache(new, [("k", 0)], PAGE, on_exists="replace")
    with pytest.raises(LinkError, match="does not answer"):
        client.sync()
    go_on(owner)
    until(lambda: client.stats()["cluster_nodes_up"] == 3)
    client.write_cache(new, [("k", 0)], PAGE, on_exists="replace")
    client.sync()
    target = np.zeros(PAGE, np.uint8)
    assert client.read_cache(target, [("k", 0)], PAGE).wait(20).all_ok
    assert np.array_equal(target, new[:PAGE])
    freeze(owner.pid)
    assert client.exists(["k"]) == [False]


class Overtaken:
    """A node's server, of which a value is replaced while copies of it are on their way."""

    def __init__(self, native: Any, overtake: Callable[[], None], is_looked_at: bool) -> None:
        self._native, self._overtake, self._is_looked_at = native, overtake, is_looked_at

    def begin_move(self, namespace: str, keys: list[bytes]) -> int:
        return int(self._native.begin_move(namespace, keys))

    def end_move(self, move: int) -> list[bool]:
        if self._is_looked_at:
            self._overtake()
        stayed = list(self._native.end_move(move))
        if not self._is_looked_at:  # too late for the look: the erasure behind has to do it
            self._overtake()
        return stayed


@pytest.mark.parametrize("is_looked_at", [True, False])
async def test_a_copy_on_its_way_does_not_outlive_a_replacement(
    nodes: InProcessCluster, nodes_client: Client, is_looked_at: bool
) -> None:
    old, new = noise(1), noise(2)
    nodes_client.write_cache(old, [("k", 0)], PAGE).wait(20)
    owner, other, _ = order_of(nodes, "k")
    replaced = []

    def overtake() -> None:
        batch = nodes_client.write_cache(new, [("k", 0)], PAGE, on_exists="replace")
        replaced.append(batch.wait(20).all_ok)

    peers = Peers("")
    reader = await peers.client(owner.address, "faults")
    source = Source(reader, Overtaken(owner.native, overtake, is_looked_at), "faults")
    target = await peers.client(other.address, "faults")
    moved = await push(source, target, [Stored(b"k", PAGE)], Rate(1e12))
    assert (replaced, moved.sent) == ([True], ())
    assert await target.exists(["k"]) == [False]
    await peers.close()
    found = np.zeros(PAGE, np.uint8)
    assert nodes_client.read_cache(found, [("k", 0)], PAGE).wait(20).all_ok
    assert np.array_equal(found, new[:PAGE])


def test_a_copy_that_came_before_the_new_value_is_erased_behind_it(
    nodes: InProcessCluster, nodes_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the erasure before the new value and that value."""
    write = Replacement._write
    old, new = noise(1), noise(2)
    nodes_client.write_cache(old, [("k", 0)], PAGE).wait(20)
    other = order_of(nodes, "k")[1]
    with infinistore.connect(other.url, "faults") as agent:

        def come_before(replacement: Replacement) -> None:
            assert agent.write_cache(old, [("k", 0)], PAGE).wait(20).all_ok
            write(replacement)

        monkeypatch.setattr(Replacement, "_write", come_before)
        batch = nodes_client.write_cache(new, [("k", 0)], PAGE, on_exists="replace")
        assert batch.wait(20).all_ok
        assert not agent.exists(["k"])[0]


def tell(server: Server, note: Note) -> None:
    """As the node's agent does."""
    value = np.frombuffer(encode_note(note), np.uint8)
    with infinistore.connect(server.url, NOTE_NAMESPACE) as agent:
        agent.write_cache(value, [(NOTE_KEY, 0)], value.size, on_exists="replace")
        agent.sync()


def test_copies_take_a_part_of_the_reads_and_outlive_their_owner(
    nodes: InProcessCluster, nodes_client: Client
) -> None:
    source = noise()
    keys = [f"{{hot}}{index}" for index in range(COUNT)]
    blocks = [(key, index * PAGE) for index, key in enumerate(keys)]
    owner, copy, other = order_of(nodes, keys[0])
    nodes_client.write_cache(source, blocks, PAGE)
    nodes_client.sync()
    # The copy has all but the last key.
    with infinistore.connect(copy.url, "faults") as agent:
        agent.write_cache(source, blocks[:-1], PAGE)
        agent.sync()
    tell(owner, Note(owner.address, copies={group_id(b"hot"): (copy.address, "gone:1")}))

    def read_hot() -> list[Code]:
        target = np.zeros(COUNT * PAGE, np.uint8)
        outcomes = list(nodes_client.read_cache(target, blocks, PAGE).wait(20))
        assert_right(outcomes, target, source)
        return outcomes

    def is_shared() -> bool:
        before = copy.stats()["sent_bytes"]
        assert read_hot() == [Code.OK] * COUNT
        return copy.stats()["sent_bytes"] > before

    until(is_shared)
    for _ in range(20):
        assert read_hot() == [Code.OK] * COUNT  # what the copy lacks, the owner has
    assert nodes_client.match_prefix(keys) == COUNT
    owner.kill()
    assert read_hot() == [Code.OK] * (COUNT - 1) + [Code.MISSING]
    assert nodes_client.match_prefix(keys) == COUNT - 1
    assert other.stats()["seals"] == 0


def test_a_note_that_is_rubbish_is_as_none(nodes: InProcessCluster, nodes_client: Client) -> None:
    nodes_client.write_cache(noise(), BLOCKS, PAGE)
    nodes_client.sync()
    rubbish = np.full(PAGE, 255, np.uint8)
    with infinistore.connect(nodes.servers[0].url, NOTE_NAMESPACE) as agent:
        agent.write_cache(rubbish, [(NOTE_KEY, 0)], PAGE, on_exists="replace")
        agent.sync()
    assert read(nodes_client)[0] == [Code.OK] * COUNT


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_told_to_connect_itself(
    nodes: InProcessCluster, nodes_client: Client
) -> None:
    nodes_client.write_cache(noise(), BLOCKS, PAGE)
    nodes_client.sync()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with pytest.raises(UsageError, match="fork"):
                nodes_client.exists(KEYS)
            nodes_client.release([1])
            nodes_client.close()
            with infinistore.connect(nodes.url, "faults") as own:
                assert own.exists(KEYS) == [True] * COUNT
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert nodes_client.exists(KEYS) == [True] * COUNT


def test_a_client_that_nobody_closed_ends_with_its_last_reference(
    nodes: InProcessCluster,
) -> None:
    def watchers() -> int:
        return sum(thread.name == "infinistore-cluster" for thread in threading.enumerate())

    before = watchers()
    client: Client | None = infinistore.connect(nodes.url)
    assert client is not None
    client.exists(["k"])
    assert watchers() == before + 1
    del client
    until(lambda: watchers() == before)
    until(lambda: all(server.stats()["sessions"] == 0 for server in nodes.servers))


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_closed_client_says_so(nodes: InProcessCluster, kind: str) -> None:
    client: Any
    if kind == "sync":
        client = infinistore.connect(nodes.url)
        batch = client.write_cache(noise(), BLOCKS, PAGE)
        client.close()
        assert set(batch.wait(5)) <= {Code.OK, Code.CLOSED}
        with pytest.raises(UsageError, match="closed"):
            client.exists(["k"])
    else:
        client = await infinistore.connect_async(nodes.url)
        await client.write_cache(noise(), BLOCKS, PAGE)
        await client.close()
        with pytest.raises(UsageError, match="closed"):
            await client.exists(["k"])


async def test_an_async_client_survives_a_node(cluster: ClusterProcess) -> None:
    source = noise()
    async with await infinistore.connect_async(cluster.url, "async") as client:
        await client.write_cache(source, BLOCKS, PAGE)
        freeze(cluster.servers[0].pid)
        target = np.zeros_like(source)
        with pytest.raises(infinistore.KeyNotFound) as caught:
            await client.read_cache(target, BLOCKS, PAGE)
        assert caught.value.outcomes is not None
        assert_right(list(caught.value.outcomes), target, source)
        await client.write_cache(source, BLOCKS, PAGE)
        assert (await client.read_cache(target, BLOCKS, PAGE)).all_ok
        assert await client.match_prefix(KEYS) == COUNT
        go_on(cluster.servers[0])
        for _ in range(200):
            if (await client.stats())["cluster_nodes_up"] == 3:
                break
            await asyncio.sleep(0.02)
        assert (await client.read_cache(target, BLOCKS, PAGE)).all_ok
        assert np.array_equal(target, source)
