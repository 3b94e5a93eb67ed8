"""The tenants' file: what is read, what is refused, and that no refusal shows a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinistore.errors import ConfigError
from infinistore.server.tenants import TENANTS_MAX, Tenant, identify, read_tenants

SECRET = "hush-hush"


def write(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_has_a_table_for_each_tenant(tmp_path: Path) -> None:
    text = f'[a]\ntoken = "{SECRET}"\nquota = "2GiB"\nadmin = true\n[b-2]\ntoken = "other"\n'
    a, b = read_tenants(write(tmp_path, text), "root")
    assert (a.name, a.token, a.quota_bytes, a.is_admin) == ("a", SECRET, 2 << 30, True)
    assert (b.name, b.quota_bytes, b.is_admin) == ("b-2", 0, False)
    assert SECRET not in repr((a, b))
    assert read_tenants("", "root") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 tenants"),
        ("".join(f'[t{i}]\ntoken = "{i}"\n' for i in range(TENANTS_MAX + 1)), "257 tenants"),
        (f'[a]\ntoken = "{SECRET}', "not valid TOML"),
        (f'["a/b"]\ntoken = "{SECRET}"', "a name has"),
        (f'[""]\ntoken = "{SECRET}"', "a name has"),
        (f'a = "{SECRET}"', "must be a table"),
        ("[a]\nquota = 1", "token must be"),
        ('[a]\ntoken = ""', "token must be"),
        (f'[a]\ntoken = "{SECRET * 99}"', "token must be"),
        (f'[a]\ntoken = "{SECRET}"\nqouta = 1', "no setting 'qouta'"),
        (f'[a]\ntoken = "{SECRET}"\nquota = "much"', "quota"),
        (f'[a]\ntoken = "{SECRET}"\nquota = -1', "no size"),
        (f'[a]\ntoken = "{SECRET}"\nadmin = 1', "true or false"),
        (f'[a]\ntoken = "{SECRET}"\n[b]\ntoken = "{SECRET}"', "stands twice"),
        ('[a]\ntoken = "root"', "stands twice"),
    ],
)
def test_what_is_wrong_is_named_without_any_token(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        read_tenants(write(tmp_path, text), "root")
    assert SECRET not in str(refused.value)


def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="writable by others"):
        read_tenants(write(tmp_path, f'[a]\ntoken = "{SECRET}"', 0o620), "root")
    with pytest.raises(ConfigError, match="cannot read"):
        read_tenants(str(tmp_path / "none"), "root")


def test_a_token_is_somebodys_or_nobodys() -> None:
    a = Tenant("a", "of a")
    assert identify("of a", "root", (a,)) is a
    root = identify("root", "root", (a,))
    assert root is not None
    assert root.sees_all
    assert identify("", "root", (a,)) is None
    assert identify("", "", (a,)) is None
    anybody = identify("whatever", "", ())
    assert anybody is not None
    assert anybody.sees_all


def test_a_readers_token_sees_all_and_closes_the_server() -> None:
    a = Tenant("a", "of a")
    reader = identify("of readers", "root", (a,), "of readers")
    assert reader is not None
    assert (reader.sees_all, reader.reads_only) == (True, True)
    root = identify("root", "root", (a,), "of readers")
    assert root is not None
    assert not root.reads_only
    assert identify("", "", (), "of readers") is None
    assert identify("of a", "root", (a,), "of readers") is a


def test_a_tenants_names_are_below_its_own() -> None:
    assert Tenant("a", "x").whose("n") == ("a/n", False)
    assert Tenant("a", "x").whose(None) == ("a/", True)
    assert Tenant("", "x").whose("n") == ("n", False)
    assert Tenant("", "x").whose(None) == (None, False)
