"""Membership over a registry in memory: who is known, through outages, expiry and usurpers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from fake_registry import FakeStore
from infinistore.cluster.members.etcd import parse_etcd
from infinistore.cluster.members.membership import Membership, beat_s, decoded, delays
from infinistore.cluster.members.registry import RegistryError
from infinistore.cluster.nodes import Node, View, encode_node
from infinistore.errors import ConfigError, LinkError
from waiting import until_async as until

TTL_S = 0.06  # a beat is 20 ms


def node(name: str, incarnation: int = 1) -> Node:
    return Node(name, f"{name}:1", incarnation=incarnation)


@contextlib.asynccontextmanager
async def member(store: FakeStore, own: Node | None = None) -> AsyncIterator[Membership]:
    views: list[View] = []
    made = Membership(store.open, TTL_S, views.append, own, Random(1))
    running = asyncio.ensure_future(made.run())
    try:
        yield made
        versions = [view.version for view in views]
        assert versions == sorted(set(versions))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def names(membership: Membership) -> list[str]:
    return [each.name for each in membership.view.nodes]


async def test_nodes_find_each_other_and_a_reader_finds_them() -> None:
    store = FakeStore()
    async with member(store, node("a")) as a, member(store, node("b")), member(store) as reader:
        await until(lambda: names(a) == names(reader) == ["a", "b"])
        assert a.view.find("b") == node("b")


async def test_a_change_of_state_is_seen_by_the_others() -> None:
    store = FakeStore()
    async with member(store, node("a")) as a, member(store) as reader:
        await until(lambda: names(reader) == ["a"])
        a.change(replace(node("a"), state="leaving"))
        await until(lambda: reader.view.nodes[0].state == "leaving" and a.is_settled)


async def test_a_node_that_expires_is_dropped_and_comes_back_with_a_new_incarnation() -> None:
    store = FakeStore()
    async with member(store) as reader:
        async with member(store, node("a", 1)):
            await until(lambda: names(reader) == ["a"])
        store.expire(store.values["a"][1])  # it was killed: nothing revoked its lease
        await until(lambda: names(reader) == [])
        async with member(store, node("a", 2)):
            await until(lambda: reader.view.nodes == (node("a", 2),))


async def test_leaving_takes_the_node_out_at_once() -> None:
    store = FakeStore()
    async with member(store) as reader, member(store, node("a")) as a:
        await until(lambda: names(reader) == ["a"])
        await a.leave()
        await until(lambda: names(reader) == [])


async def test_what_is_known_stays_while_the_registry_is_away() -> None:
    store = FakeStore()
    async with member(store, node("a")) as a, member(store, node("b")):
        await until(lambda: names(a) == ["a", "b"])
        store.go_away()
        await until(lambda: not a.is_connected)
        assert a.problem
        assert names(a) == ["a", "b"]
        store.is_away = False
        await until(lambda: a.is_settled)
        assert (names(a), a.problem) == (["a", "b"], "")


async def test_who_is_missing_after_an_outage_is_awaited_for_a_ttl() -> None:
    store = FakeStore()
    seen: list[int] = []
    async with member(store) as reader:
        async with member(store, node("b")):
            await until(lambda: names(reader) == ["b"])
            store.go_away()
            await until(lambda: not reader.is_connected)
            store.lose_everything()
        reader._on_view = lambda view: seen.append(len(view.nodes))
        store.is_away = False
        await until(lambda: names(reader) == [])
        assert seen == [0]
        assert store.calls.count("replacing") > 2  # it was not at once


async def test_a_lease_that_ended_while_the_registry_was_away_is_taken_anew() -> None:
    store = FakeStore()
    async with member(store, node("a")) as a:
        await until(lambda: a.is_settled)
        store.go_away()
        await until(lambda: not a.is_connected)
        store.lose_everything()
        store.is_away = False
        await until(lambda: "a" in store.values)


async def test_a_registration_that_somebody_deletes_is_made_again() -> None:
    store = FakeStore()
    async with member(store, node("a")) as a:
        await until(lambda: a.is_settled)
        store.expire(store.values["a"][1])
        await until(lambda: "a" in store.values)
        assert names(a) == ["a"]


async def test_of_two_with_one_name_the_later_has_it_and_the_other_says_so() -> None:
    store = FakeStore()
    async with member(store, node("a", 1)) as old:
        await until(lambda: old.is_settled)
        async with member(store, node("a", 2)) as new:
            await until(lambda: old.problem)
            assert "node_name" in old.problem
            old.change(node("a", 1))  # no way back
            puts = store.calls.count("put")
            pings = store.calls.count("replacing")
            await until(lambda: store.calls.count("replacing") > pings + 2)
            assert store.calls.count("put") == puts
            assert old.view.nodes == new.view.nodes == (node("a", 2),)


async def test_who_was_usurped_while_cut_off_does_not_take_the_name_back() -> None:
    store = FakeStore()
    async with member(store, node("a", 1)) as old:
        await until(lambda: old.is_settled)
        store.go_away()
        await until(lambda: not old.is_connected)
        store.lose_everything()
        store.put("a", encode_node(node("a", 2)).encode(), store.grant())
        store.is_away = False
        await until(lambda: old.problem.startswith("another server"))
        assert store.values["a"][0] == encode_node(node("a", 2)).encode()


async def test_tries_are_bounded_and_scattered() -> None:
    waits = list(islice(delays(3.0, Random(4)), 20))
    assert max(waits) <= beat_s(3.0)
    assert min(waits[10:]) >= beat_s(3.0) / 2
    assert waits != list(islice(delays(3.0, Random(5)), 20))


async def test_what_is_no_node_is_left_out() -> None:
    good = encode_node(node("a")).encode()
    assert decoded({"a": good, "b": b"{", "c": good}) == {"a": node("a")}


def test_urls_of_etcd() -> None:
    address = parse_etcd("infinistore+etcd://a:1,b,[::1]:3/prod-2")
    assert address.endpoints == (("a", 1), ("b", 2379), ("[::1]", 3))
    assert address.prefix == "/infinistore/prod-2/nodes/"


@pytest.mark.parametrize(
    "url", ["a", "a/", "/c", "a:x/c", "a:0/c", "a/b/c", "a,,b/c", "::1/c", "a/" + "c" * 200]
)
def test_wrong_urls_of_etcd_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="infinistore\\+etcd"):
        parse_etcd("infinistore+etcd://" + url)


@pytest.mark.parametrize(
    ("url", "user", "password", "says"),
    [
        ("a/c", "me", "", "etcd_password is not"),
        ("a/c", "", "x", "etcd_user is not"),
        ("me:x@a/c", "", "", "no user in it"),
    ],
)
def test_logins_of_etcd_are_whole_and_not_in_urls(
    url: str, user: str, password: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_etcd("infinistore+etcd://" + url, user, password)


async def test_who_was_lost_drops_what_may_be_old_before_he_is_a_node_again() -> None:
    store = FakeStore()
    told: list[tuple[frozenset[str], bool]] = []

    async def on_return(namespaces: frozenset[str]) -> None:
        told.append((namespaces, "a" in store.values))

    made = Membership(
        store.open, TTL_S, lambda view: None, node("a"), Random(1), on_return=on_return
    )
    running = asyncio.ensure_future(made.run())
    await until(lambda: made.is_settled)
    await made.mark_replacing("kv")
    assert told == []
    store.expire(store.values["a"][1])
    await until(lambda: "a" in store.values)
    assert told == [(frozenset({"kv"}), False)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_who_cannot_drop_what_may_be_old_is_no_node_until_he_can() -> None:
    store = FakeStore()
    told: list[bool] = []

    async def on_return(namespaces: frozenset[str]) -> None:
        told.append("a" in store.values)
        if len(told) == 1:
            raise RegistryError("away, in the middle of it")

    made = Membership(
        store.open, TTL_S, lambda view: None, node("a"), Random(1), on_return=on_return
    )
    running = asyncio.ensure_future(made.run())
    await until(lambda: made.is_settled)
    store.expire(store.values["a"][1])
    await until(lambda: "a" in store.values)
    assert told == [False, False]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_first_replacement_needs_the_registry() -> None:
    store = FakeStore()
    store.is_away = True
    async with member(store) as reader:
        with pytest.raises(LinkError, match="does not answer"):
            await reader.mark_replacing("kv")


async def test_who_only_looks_knows_the_namespaces_that_others_told_of() -> None:
    store = FakeStore()
    async with member(store) as reader:
        await until(lambda: reader.is_connected)
        assert reader.replacing == set()
        await reader.mark_replacing("kv")
        await until(lambda: reader.replacing == {"kv"})
        store.is_away = True
        await until(lambda: not reader.is_connected)
        assert reader.replacing == {"kv"}
