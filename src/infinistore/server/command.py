"""The command line of a server: the flags of ServerConfig, and the original's as aliases."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from infinistore.config import GIB, ServerConfig, Setting, load, settings
from infinistore.errors import ConfigError, InfiniStoreError
from infinistore.server.log_lines import log_to_stderr
from infinistore.server.process_list import hide_argument

logger = logging.getLogger(__name__)

EXIT_CANNOT_START = 2


@dataclass(frozen=True, slots=True)
class Alias:
    """A flag of the original package; `field` empty: taken and ignored."""

    flag: str
    field: str = ""
    convert: Callable[[str], object] = str
    is_switch: bool = False
    default: str = ""


# Flags that show in the list of processes, and what does not.
SECRETS = {
    "token": "INFINISTORE_TOKEN or --token-file",
    "etcd_password": "INFINISTORE_ETCD_PASSWORD",
}
ALIASES = (
    Alias("--service-port", "port"),
    Alias("--manage-port", "admin_port"),
    Alias("--prealloc-size", "pool_bytes", lambda gib: _whole(gib) * GIB),
    Alias("--evict-interval", "housekeeping_interval_s"),
    Alias("--evict-min-threshold", "evict_stop", default="0.6"),
    Alias("--evict-max-threshold", "evict_start", default="0.8"),
    Alias("--enable-periodic-evict", is_switch=True),
    Alias("--auto-increase", is_switch=True),
    Alias("--minimal-allocate-size"),
    Alias("--dev-name"),
    Alias("--ib-port"),
    Alias("--link-type"),
    Alias("--hint-gid-index"),
)


MARKS = [alias for alias in ALIASES if alias.default]


def _name(alias: Alias) -> str:
    return "original" + alias.flag.replace("-", "_")


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"--prealloc-size = {text!r} is not a whole number of GB")
    return int(text)


def _option(setting: Setting) -> Callable[[Any], Any]:
    default = "" if setting.default in ("", 0) else f"  [default: {setting.show(setting.default)}]"
    text = f"{setting.help}{default}"
    if setting.kind is bool:
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.option(flags, setting.field, default=None, help=text)
    if setting.choices:
        kind: click.ParamType[Any] = click.Choice(setting.choices)
    else:
        kind = click.STRING
    metavar = {"bytes": "SIZE", "s": "TIME"}.get(setting.unit, setting.kind.__name__.upper())
    shown = None if setting.choices else metavar
    return click.option(setting.flag, setting.field, type=kind, metavar=shown, help=text)


def _alias_option(alias: Alias) -> Callable[[Any], Any]:
    name = _name(alias)
    if alias.is_switch:
        return click.option(alias.flag, name, is_flag=True, default=None, hidden=True)
    return click.option(alias.flag, name, type=click.STRING, hidden=True)


def _with_flags(command: Any) -> Any:
    for option in reversed([*map(_option, settings(ServerConfig)), *map(_alias_option, ALIASES)]):
        command = option(command)
    return command


@click.command("serve", context_settings={"show_default": False})
@click.option("--config", "file", metavar="FILE", help="TOML file with a [server] table.")
@_with_flags
def command(file: str | None, **flags: object) -> None:
    """Runs a server.

    Every flag is also an environment variable (--pool: INFINISTORE_POOL) and a TOML key
    (pool, in the table [server]); a flag wins over the environment, that over the file.
    """
    for name in SECRETS:
        hide_argument(str(flags.get(name) or ""))
    try:
        config, remarks = read(flags, file)
    except ConfigError as error:
        _fail(error)
    log_to_stderr(config.log_level, config.log_format)
    for remark in remarks:
        logger.warning("%s", remark)
    from infinistore import __version__
    from infinistore.server.daemon import run  # --help must not wait for aiohttp

    try:
        run(config, __version__)
    except InfiniStoreError as error:
        _fail(error)


def read(flags: dict[str, object], file: str | None) -> tuple[ServerConfig, list[str]]:
    """The config of a command line, and what to tell the user about it."""
    remarks: list[str] = []
    for name, instead in SECRETS.items():
        if flags.get(name):
            flag = "--" + name.replace("_", "-")
            remarks.append(
                f"{flag} showed in the list of processes until it was read; prefer {instead}"
            )
    # Who gave one of the original's marks has its other one in mind.
    if any(flags.get(_name(alias)) is not None for alias in MARKS):
        flags |= {_name(alias): flags.get(_name(alias)) or alias.default for alias in MARKS}
    ignored = []
    for alias in ALIASES:
        raw = flags.pop(_name(alias), None)
        if raw is None:
            continue
        if not alias.field:
            ignored.append(alias.flag)
        elif flags.get(alias.field) is None:
            flags[alias.field] = alias.convert(str(raw))
    if ignored:
        remarks.append(f"without effect here, and ignored: {', '.join(ignored)}")
    return load(ServerConfig, flags, file=file), remarks


def _fail(error: InfiniStoreError) -> NoReturn:
    click.echo(f"infinistore: error: {error}", err=True)
    sys.exit(EXIT_CANNOT_START)
