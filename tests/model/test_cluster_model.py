"""A cluster's client against a dict, while nodes die and come back: never a wrong byte."""

from __future__ import annotations

import contextlib
import hashlib

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import infinistore
from cluster_nodes import InProcessCluster
from infinistore import Code, InfiniStoreError, LinkError
from waiting import until

SIZE = 4096
NAMES = [f"{{chain {n // 4}}}block {n}" for n in range(8)] + [f"lone {n}" for n in range(4)]
SOME = st.one_of(st.just(NAMES), st.lists(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES)))
PREFIXES = st.tuples(st.integers(0, len(NAMES) - 1), st.integers(1, len(NAMES)))


def content(name: str, version: int) -> np.ndarray:
    seed = hashlib.sha256(f"{name} {version}".encode()).digest()[:8]
    return np.random.default_rng(int.from_bytes(seed, "little")).integers(0, 256, SIZE, np.uint8)


class ClusterMachine(RuleBasedStateMachine):
    """`may_be` are the versions that a read may find; `must_be` what it has to find."""

    replicas = 1

    def __init__(self) -> None:
        super().__init__()
        self.cluster = InProcessCluster(3)
        self.client = infinistore.connect(
            self.cluster.url, transport="tcp", channels=1, replicas=self.replicas
        )
        self.version = 0
        self.may_be: dict[str, set[int]] = {}
        self.must_be: set[str] = set()
        self.has_all = True  # all nodes run, and the client knows

    def teardown(self) -> None:
        self.client.close()
        self.cluster.kill()

    def write(self, names: list[str], version: int, on_exists: str) -> list[Code]:
        cache = np.concatenate([content(name, version) for name in names])
        blocks = [(name, index * SIZE) for index, name in enumerate(names)]
        batch = self.client.write_cache(cache, blocks, SIZE, on_exists=on_exists)
        return list(batch.wait(20))

    @rule(names=SOME)
    def put(self, names: list[str]) -> None:
        """A name always has the same bytes, unless it is replaced."""
        fresh = [name for name in dict.fromkeys(names) if len(self.may_be.get(name, {0})) == 1]
        versions = [next(iter(self.may_be.get(name, {0}))) for name in fresh]
        if not fresh:
            return
        cache = np.concatenate([content(n, v) for n, v in zip(fresh, versions, strict=True)])
        blocks = [(name, index * SIZE) for index, name in enumerate(fresh)]
        outcomes = self.client.write_cache(cache, blocks, SIZE).wait(20)
        for name, version, code in zip(fresh, versions, outcomes, strict=True):
            self.may_be[name] = {version}
            if self.has_all or self.replicas == 1:
                assert code in (Code.OK, Code.EXISTS)
            if code in (Code.OK, Code.EXISTS) and self.has_all:
                self.must_be.add(name)

    @rule(names=SOME)
    def replace(self, names: list[str]) -> None:
        names = list(dict.fromkeys(names))
        self.version += 1
        for name, code in zip(names, self.write(names, self.version, "replace"), strict=True):
            if code == Code.OK:
                self.may_be[name] = {self.version}
                if self.has_all:
                    self.must_be.add(name)
            else:
                assert not self.has_all
                self.may_be.setdefault(name, {0}).add(self.version)
                self.must_be.discard(name)

    @rule(names=SOME)
    def delete(self, names: list[str]) -> None:
        try:
            self.client.delete(names)
        except InfiniStoreError:
            assert not self.has_all
        else:
            for name in names:
                self.may_be.pop(name, None)
        self.must_be.difference_update(names)

    @rule(names=SOME)
    def read(self, names: list[str]) -> None:
        target = np.zeros(len(names) * SIZE, np.uint8)
        blocks = [(name, index * SIZE) for index, name in enumerate(names)]
        outcomes = self.client.read_cache(target, blocks, SIZE).wait(20)
        for index, (name, code) in enumerate(zip(names, outcomes, strict=True)):
            found = target[index * SIZE : (index + 1) * SIZE]
            if code == Code.OK:
                versions = self.may_be.get(name, set())
                assert any(np.array_equal(found, content(name, v)) for v in versions), name
            else:
                assert code == Code.MISSING or not any(n.is_running for n in self.cluster.nodes)
                assert name not in self.must_be, name

    @rule(where=PREFIXES)
    def look_up(self, where: tuple[int, int]) -> None:
        names = (NAMES * 2)[where[0] : where[0] + where[1]]
        if not any(node.is_running for node in self.cluster.nodes):
            return
        with self.client_lookup(names) as found:
            there = self.client.exists(names)
            assert found <= len(names)
            for name, is_there in zip(names, there, strict=True):
                assert is_there or name not in self.must_be
                assert not is_there or name in self.may_be
            if self.has_all:
                expected = there.index(False) if False in there else len(names)
                assert found == expected

    @contextlib.contextmanager
    def client_lookup(self, names: list[str]):
        lookup = self.client.lookup(names, lease_s=10)
        yield lookup.wait(20)
        self.client.release(lookup.lease_ids)

    @precondition(lambda self: sum(n.is_running for n in self.cluster.nodes) > 1)
    @rule(index=st.integers(0, 2))
    def kill(self, index: int) -> None:
        node = self.cluster.nodes[index]
        if node.is_running:
            node.kill()
            alive = sum(n.is_running for n in self.cluster.nodes)
            if not self.has_all or self.replicas == 1 or alive < 2:
                self.must_be.clear()
            self.has_all = False

    @rule()
    def start_all(self) -> None:
        """What was lost stays lost; what is written from now on is kept."""
        for node in self.cluster.nodes:
            if not node.is_running:
                node.start()
        until(self.are_all_up)
        if not self.has_all and self.replicas > 1:
            self.must_be.clear()  # the copies that went are not made up for
        self.has_all = True

    def are_all_up(self) -> bool:
        with contextlib.suppress(LinkError):
            return self.client.stats()["cluster_nodes_up"] == 3
        return False

    @invariant()
    def is_sound(self) -> None:
        for node in self.cluster.nodes:
            if node.is_running:
                assert node.native.check_integrity() == ""


class ReplicatedMachine(ClusterMachine):
    replicas = 2


_SETTINGS = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestCluster = ClusterMachine.TestCase
TestCluster.settings = _SETTINGS
TestReplicas = ReplicatedMachine.TestCase
TestReplicas.settings = _SETTINGS
