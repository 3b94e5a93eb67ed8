"""RouterSettings: what is normalised and what is refused."""

from __future__ import annotations

import pytest

from infinistore.errors import ConfigError
from infinistore.router.settings import RouterSettings, upstream_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://a:8000", "http://a:8000"),
        ("a:8000", "http://a:8000"),
        ("http://a:8000/", "http://a:8000"),
        ("http://a:8000/v1", "http://a:8000"),
        ("https://a/base/v1/", "https://a/base"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_are_normalised(text, url):
    assert upstream_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://a", "http://a:x", "http://a:99999", "http://u@a", "http://a?x=1"]
)
def test_what_is_no_server_url_is_refused(text):
    with pytest.raises(ConfigError, match=r"must be|no server URL|no usable port"):
        upstream_url(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_urls": ()}, "no decode server"),
        ({"decode_urls": ("http://a:1", "a:1/v1")}, "names a server twice"),
        ({"port": -1}, "port -1"),
        ({"prefill_timeout_s": 0}, "prefill_timeout_s is 0"),
        ({"in_flight_max": -3}, "in_flight_max is -3"),
        ({"back_off_max_s": 0.1}, "back_off_max_s 0.1 is below"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        RouterSettings(**{"prefill_urls": (), "decode_urls": ("http://a:1",), **changes})


def test_decode_alone_is_a_router_too():
    assert RouterSettings(prefill_urls=(), decode_urls=("a:1",)).decode_urls == ("http://a:1",)
