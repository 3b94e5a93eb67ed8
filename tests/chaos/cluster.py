"""A run over a cluster: nodes and etcd are killed, stopped, drained and started while clients work.

What each key must hold, and what may not be touched, is judged as for one server. Nobody is far:
what a damaged stream does, one server shows as well.
"""

from __future__ import annotations

import random
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import infinistore
from chaos.audit import check_held, check_sum
from chaos.caller import NUMBERS, SIZES
from chaos.content import KEPT, Key, content, difference
from chaos.fleet import Fleet, Kind
from chaos.harness import Teller, Watch, end_clients
from chaos.report import Report, report
from chaos.supervised import SupervisedServer
from chaos.tally import Tally
from etcd_process import EtcdProcess
from infinistore.errors import Code, InfiniStoreError
from waiting import until

TTL_S = 3
KINDS = tuple(
    Kind(style, transport) for transport in ("tcp", "shm") for style in ("blocking", "awaited")
)
KILLED_NODE, STOPPED_NODE, DRAINED_NODE = "killed node", "stopped node", "drained node"
KILLED_ETCD, KILLED_CLIENT = "killed etcd", "killed client"
FAULTS = (KILLED_NODE, STOPPED_NODE, DRAINED_NODE, KILLED_ETCD, KILLED_CLIENT)
FAULTS_MIN = 20  # of each kind: a node that starts, or drains, takes its seconds
_PATIENCE_S = 10.0
_DRAIN_S_MAX = 30.0


class Nodes:
    """All of them, by number; each keeps its name and address."""

    def __init__(self, folder: Path, count: int) -> None:
        self.etcd = EtcdProcess()
        self.all: list[SupervisedServer] = []
        for number in range(count):
            home = folder / f"node-{number}"
            home.mkdir()
            flags = (f"--cluster={self.url}", f"--node-name=n{number}", f"--node-ttl={TTL_S}")
            self.all.append(SupervisedServer(home, is_fenced=True, flags=flags))
            self.all[-1].start()
        until(lambda: all(self.count_seen_by(node) == count for node in self.all), _PATIENCE_S)

    @property
    def url(self) -> str:
        return self.etcd.url("chaos")

    @staticmethod
    def count_seen_by(node: SupervisedServer) -> int:
        return len(node.process.admin("/cluster")["nodes"])

    def death(self) -> str:
        return next((death for node in self.all if (death := node.death())), "")

    def bury(self) -> None:
        for node in self.all:
            node.bury()
        self.etcd.close()


class ClusterDirector:
    """Does one fault after the other; all nodes are at work after each."""

    def __init__(self, nodes: Nodes, fleet: Fleet, tally: Tally, chance: random.Random) -> None:
        self._nodes = nodes
        self._fleet = fleet
        self._tally = tally
        self._chance = chance
        self._faults: dict[str, Callable[[SupervisedServer], None]] = {
            KILLED_NODE: self._kill_node,
            STOPPED_NODE: self._stop_node,
            DRAINED_NODE: self._drain_node,
            KILLED_ETCD: self._kill_etcd,
            KILLED_CLIENT: self._kill_client,
        }

    @property
    def rounds(self) -> int:
        """How often every kind has come."""
        return min(self._tally.faults[kind] for kind in FAULTS)

    def one_fault(self) -> None:
        fewest = self.rounds
        kind = self._chance.choice([k for k in FAULTS if self._tally.faults[k] == fewest])
        self._faults[kind](self._chance.choice(self._nodes.all))
        self._tally.fault(kind)
        for node in self._nodes.all:
            if wrong := node.integrity():
                self._tally.find("leak", f"after a {kind}: {wrong}")
        time.sleep(self._chance.uniform(0, 1.5))  # nothing, a walk, or copies in between

    def _note_recoveries(self, kind: str, since: float) -> None:
        """Until each caller has an answer again."""
        waiting = self._fleet.near_slots()
        end = time.monotonic() + _PATIENCE_S
        while waiting and time.monotonic() < end:
            for slot in [slot for slot in waiting if slot.good_at > since]:
                self._tally.recovered(kind, slot.good_at - since)
                waiting.remove(slot)
            time.sleep(0.002)
        for _ in waiting:
            self._tally.recovered(kind, _PATIENCE_S)

    def _kill_node(self, node: SupervisedServer) -> None:
        """The others go on; it comes back before or after its registration has ended."""
        killed_at = node.kill()
        node.bury()
        self._note_recoveries(KILLED_NODE, killed_at)
        time.sleep(self._chance.choice((0.0, 0.5, TTL_S + 1.0)))
        node.start()

    def _stop_node(self, node: SupervisedServer) -> None:
        """For less than its time to live: it is slow, and stays a node."""
        self._note_recoveries(STOPPED_NODE, node.stop_for(self._chance.uniform(0.05, 1.3)))

    def _drain_node(self, node: SupervisedServer) -> None:
        began = time.monotonic()
        node.is_down = True
        node.process.admin("/drain", "POST")
        status = node.process.process.wait(_DRAIN_S_MAX)
        if status:
            self._tally.find("unexpected", f"drained with {status}: {node.process.log()[-2000:]}")
        self._note_recoveries(DRAINED_NODE, max(began, time.monotonic() - 0.1))
        node.bury()
        node.start()

    def _kill_etcd(self, node: SupervisedServer) -> None:
        killed_at = time.monotonic()
        self._nodes.etcd.kill()
        time.sleep(self._chance.uniform(0, 2 * TTL_S))
        self._note_recoveries(KILLED_ETCD, max(killed_at, time.monotonic() - 0.1))
        self._nodes.etcd.start()

    def _kill_client(self, node: SupervisedServer) -> None:
        self._fleet.replace(self._chance.choice(self._fleet.clients))


def run_cluster(
    count: int,
    minutes: float,
    seed: str,
    *,
    rounds: int = 0,
    say: Callable[[str], None] = print,
) -> Report:
    """As `run`, over so many nodes."""
    began = time.monotonic()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="is-chaos-") as name:
        folder = Path(name)
        nodes = Nodes(folder, count)
        fleet = Fleet(folder, seed, lambda _: nodes.url, tally.take, KINDS, in_cluster=True)
        director = ClusterDirector(nodes, fleet, tally, random.Random(f"{seed} faults"))
        watch, teller = Watch(nodes, fleet, tally), Teller(tally, say)
        end = began + 60 * minutes
        try:
            while (time.monotonic() < end or director.rounds < rounds) and not nodes.death():
                director.one_fault()
                teller.tell()
            end_clients(fleet, tally)
            watch.stop()
            if not nodes.death():
                _reckon(nodes, tally)
        except (OSError, AssertionError):  # a node does not answer, or start
            tally.find("unexpected", f"the run broke off: {traceback.format_exc()}")
        finally:
            watch.stop()
            fleet.kill_all()
            nodes.bury()
    took = (time.monotonic() - began) / 60
    return report(tally, seed, took, minutes, FAULTS, FAULTS_MIN)


def _reckon(nodes: Nodes, tally: Tally) -> None:
    """Everybody has gone: nothing is held, and no key is stuck."""
    for node in nodes.all:
        check_held(node, tally, "after all have gone", ("reserved_bytes", "leases"))
        check_sum(node, tally)
    with infinistore.connect(nodes.url, "chaos", transport="tcp") as store:
        for key in [Key(KEPT, size, number) for size in set(SIZES) for number in range(NUMBERS)]:
            if wrong := _stuck(store, key):
                tally.find("unexpected", f"{key.name} is stuck: {wrong}", 1)
    tally.audits += 1


def _stuck(store: infinistore.Client, key: Key) -> str:
    """What is wrong with a key that nobody uses any more: it can be written, or is there."""
    value = content(key)
    try:
        written = store.write_cache(value, [(key.name, 0)], key.size, unit="bytes").wait(5)[0]
        if written not in (Code.OK, Code.EXISTS):
            return f"a write brings {written.name}"
        read = value.copy()
        read[:] = 0
        outcome = store.read_cache(read, [(key.name, 0)], key.size, unit="bytes").wait(5)[0]
    except InfiniStoreError as error:
        return str(error)
    if outcome is not Code.OK:
        return f"a read after a write brings {outcome.name}"
    return "its bytes are wrong" if difference(key, read, 0) else ""
