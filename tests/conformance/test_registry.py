"""What membership relies on, of a real etcd and of the registry that its tests have instead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from etcd_process import EtcdProcess
from fake_registry import FakeStore
from infinistore.cluster.members.etcd import etcd_registry, parse_etcd
from infinistore.cluster.members.registry import Change, Registry, RegistryError


@pytest.fixture(params=["etcd", "fake"])
async def registry(request: pytest.FixtureRequest) -> AsyncIterator[Registry]:
    if request.param == "fake":
        yield FakeStore().open(0)
        return
    etcd = EtcdProcess()
    registry = etcd_registry(parse_etcd(etcd.url()), timeout_s=5.0)(0)
    try:
        yield registry
    finally:
        await registry.close()
        etcd.close()


async def test_changes_follow_a_listing(registry: Registry) -> None:
    assert await registry.replacing() == set()
    lease = await registry.grant(60)
    await registry.put("a", b"1", lease)
    listing = await registry.listing()
    assert listing.values == {"a": b"1"}
    await registry.put("b", b"2", lease)
    changes = registry.changes(listing.revision)
    assert await asyncio.wait_for(anext(changes), 10) == Change("b", b"2")
    await registry.put("a", b"3", lease)
    assert await asyncio.wait_for(anext(changes), 10) == Change("a", b"3")
    assert await registry.keep_alive(lease)
    await registry.revoke(lease)
    gone = [await asyncio.wait_for(anext(changes), 10) for _ in range(2)]
    assert {change.name for change in gone} == {"a", "b"}
    assert {change.value for change in gone} == {None}
    assert (await registry.listing()).values == {}
    assert not await registry.keep_alive(lease)
    with pytest.raises(RegistryError):
        await registry.put("a", b"1", lease)


async def test_an_etcd_with_users_wants_its_password() -> None:
    with contextlib.closing(EtcdProcess()) as etcd:
        etcd.require_login("pool", "s3cret")
        known = parse_etcd(etcd.url(), "pool", "s3cret")
        assert "s3cret" not in repr(known)
        registry = etcd_registry(known, timeout_s=5.0)(0)
        lease = await registry.grant(60)
        await registry.put("a", b"1", lease)
        listing = await registry.listing()
        await registry.put("b", b"2", lease)
        changes = registry.changes(listing.revision)
        assert await asyncio.wait_for(anext(changes), 10) == Change("b", b"2")
        assert await registry.keep_alive(lease)
        await registry.mark_replacing("kv")
        assert await registry.replacing() == {"kv"}
        await registry.close()
        for user, password in (("pool", "wrong"), ("", "")):
            stranger = etcd_registry(parse_etcd(etcd.url(), user, password), timeout_s=5.0)(0)
            with pytest.raises(RegistryError, match="etcd"):
                await stranger.listing()
            await stranger.close()
