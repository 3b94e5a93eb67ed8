"""Fixtures for tests with GPUs' memory: the double of CUDA's driver, and arrays of its memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import infinistore
from fake_driver import ALWAYS, LIBRARY, NOT_SUPPORTED, DeviceArray, FakeDriver

# At collection, before any test: the product loads CUDA's driver once in a process, so all tests of
# one that has these see the double, whatever the machine has.
os.environ.setdefault("INFINISTORE_CUDA_LIBRARY", str(LIBRARY))


@pytest.fixture(scope="session")
def loaded_driver() -> FakeDriver:
    """The double, which the product has in this process, too."""
    if os.environ["INFINISTORE_CUDA_LIBRARY"] != str(LIBRARY):
        pytest.skip("these tests need the double of CUDA's driver: leave INFINISTORE_CUDA_LIBRARY")
    return FakeDriver()


@pytest.fixture
def driver(loaded_driver: FakeDriver) -> Iterator[FakeDriver]:
    """The double as new: no test's faults and holds reach another's."""
    loaded_driver.reset()
    yield loaded_driver
    loaded_driver.reset()


@pytest.fixture
def device_array(driver: FakeDriver) -> Iterator[Callable[..., DeviceArray]]:
    """Makes arrays of a device's memory (`device_array(shape, dtype, device=0)`)."""
    made: list[DeviceArray] = []

    def make(*shape_and_dtype: Any, **others: Any) -> DeviceArray:
        made.append(DeviceArray(driver, *shape_and_dtype, **others))
        return made[-1]

    yield make
    driver.reset()
    for array in made:
        with driver.on(array.device):
            driver.call("cuMemFree_v2", array.address)  # a test may have freed it


@pytest.fixture
def no_faults(driver: FakeDriver) -> Iterator[None]:
    """Whatever a test does to the product, no kernel of it may touch what it must not."""
    before = driver.counter("faults")
    yield
    assert driver.counter("faults") == before


@pytest.fixture
def connect(connect: Any, driver: FakeDriver) -> Iterator[Any]:
    """As elsewhere; nothing holds up the clients' ends, whatever a test has left held."""
    yield connect
    driver.reset()


@pytest.fixture(params=["shm", "staged", "tcp"])
def client(request: pytest.FixtureRequest, driver: FakeDriver, connect: Any) -> infinistore.Client:
    """A client of `server` for each way that bytes go; staged: CUDA does not take the pool."""
    if request.param == "staged":
        driver.fail("cuMemHostRegister_v2", NOT_SUPPORTED, ALWAYS)
    transport = "tcp" if request.param == "tcp" else "shm"
    opened = connect(transport=transport, progress_timeout_s=30)
    assert isinstance(opened, infinistore.Client)
    return opened
