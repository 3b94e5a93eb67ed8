"""What is in deploy/: each file is held against its own rules, and against what the server does."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomllib

import infinistore
from infinistore.config import ServerConfig, load, settings
from infinistore.server.admin import ROUTES
from infinistore.server.prometheus import METRICS
from server_process import ServerProcess

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DASHBOARD = json.loads((DEPLOY / "grafana/infinistore.json").read_text())
TOOLS = "run: make test-operations, which installs it"


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\binfinistore_\w+", text))


def test_every_metric_of_the_dashboard_is_one_that_the_server_exports(
    server: ServerProcess,
) -> None:
    exported = {
        line.split("{")[0].split(" ")[0]
        for line in server.admin("/metrics").splitlines()
        if not line.startswith("#")
    }
    asked = names_in(json.dumps(DASHBOARD))
    assert len(asked) >= 25
    assert asked <= exported, f"not exported: {sorted(asked - exported)}"


def test_what_the_dashboard_asks_is_what_the_command_line_shows(
    server: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    client = connect()
    cache = np.zeros(64 * 1024, np.uint8)
    for first in range(0, 64, 16):
        blocks = [(f"k{first + i}", i * 4096) for i in range(16)]
        client.write_cache(cache, blocks, 4096)
        client.sync()
        client.read_cache(np.zeros_like(cache), blocks, 4096)
        client.sync()
    client.match_prefix(["none"])
    command = [sys.executable, "-m", "infinistore", "status", "--json"]
    command.append(f"--admin={server.admin_address}")
    told = subprocess.run(command, capture_output=True, check=True, timeout=30)
    stats = json.loads(told.stdout)["stats"]
    samples = dict(re.findall(r"^([^#\s]\S*) (\S+)$", server.admin("/metrics"), re.M))
    asked = names_in(json.dumps(DASHBOARD))
    shown, wanted = {}, {}
    for metric in METRICS:
        name = f"infinistore_{metric.name}"
        if name in asked and metric.source in stats and metric.suffix != "_sum":
            labels = f"{{{metric.labels}}}" if metric.labels else ""
            shown[name + labels] = float(samples[f"{name}{metric.suffix}{labels}"])
            wanted[name + labels] = pytest.approx(stats[metric.source] * metric.scale)
    assert shown == wanted
    assert len(shown) > 25
    assert shown["infinistore_hits_total"] == 64


def test_the_page_of_metrics_has_all_that_a_server_exports(server: ServerProcess) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", server.admin("/metrics"), re.M))
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    assert kinds.items() <= dict(listed).items()
    page = runpy.run_path(str(ROOT / "scripts/metrics_page.py"))["page"]()
    assert (ROOT / "docs/metrics.md").read_text() == page


def test_counters_are_asked_as_rates_and_gauges_are_not(server: ServerProcess) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", server.admin("/metrics"), re.M))
    for expression in expressions():
        for name in names_in(expression):
            kind = kinds.get(name) or kinds.get(name.removesuffix("_bucket"))
            is_rated = re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[", expression) is not None
            assert is_rated == (kind in ("counter", "histogram")), expression


def test_the_dashboard_is_well_formed() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$(\w+)", " ".join(expressions()))) <= variables
    assert all("$job" in expression for expression in expressions())


def test_the_histogram_counts_what_the_summary_counts(server: ServerProcess) -> None:
    text = server.admin("/metrics")
    for verb in ("put", "get"):
        bounds = re.findall(
            rf'^infinistore_{verb}_duration_seconds_bucket{{le="([^"]+)"}} (\d+)$', text, re.M
        )
        assert [float(bound) for bound, _ in bounds] == sorted(float(bound) for bound, _ in bounds)
        assert [int(count) for _, count in bounds] == sorted(int(count) for _, count in bounds)
        assert bounds[-1][0] == "+Inf"
        total = re.search(rf"^infinistore_{verb}_seconds_count (\d+)$", text, re.M)
        assert total
        assert bounds[-1][1] == total[1]


def test_the_unit_verifies(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    # It wants the program to be there, which is where an operator put it.
    text = (DEPLOY / "systemd/infinistore.service").read_text()
    unit = tmp_path / "infinistore.service"
    unit.write_text(text.replace("/opt/infinistore/bin/infinistore", sys.executable))
    ended = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.strip()) == (0, "")


def test_the_units_settings_are_settings() -> None:
    known = {setting.variable for setting in settings(ServerConfig)} | {"INFINISTORE_CONFIG"}
    text = (DEPLOY / "systemd/infinistore.service").read_text()
    named = set(re.findall(r"INFINISTORE_[A-Z_]+", text))
    assert named
    assert named <= known
    assert "--token" not in text


def test_the_containers_file_is_clean() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if program is None:
        pytest.skip(f"no hadolint here; {TOOLS}")
    ended = subprocess.run(
        [program, "--no-color", str(DEPLOY / "container/Containerfile")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "")


def test_what_the_container_copies_is_there() -> None:
    text = (DEPLOY / "container/Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.M):
        for name in line.split():
            assert (ROOT / name).exists(), name
    # What a wheel is made of, so that an image is built from nothing else.
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert metadata["project"]["readme"] in text
    assert all(name in text for name in metadata["project"]["license-files"])


def documents() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason=f"no PyYAML here; {TOOLS}")
    found: dict[str, Any] = {}
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            found[document["kind"]] = document
    return found


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "StatefulSet"])
def test_manifests_fit_the_schemas(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=f"not installed; {TOOLS}")
    validate.validate(documents()[kind], "1.30", strict=True)


def test_the_schemas_would_refuse_a_mistake() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=f"not installed; {TOOLS}")
    wrong = documents()["Service"]
    wrong["spec"]["prots"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, "1.30", strict=True)


def test_manifests_agree_with_each_other_and_the_server() -> None:
    found = documents()
    assert set(found["Kustomization"]["resources"]) == {
        path.name for path in MANIFESTS if path.name != "kustomization.yaml"
    }
    pods = found["StatefulSet"]["spec"]["template"]
    (container,) = pods["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    config = load(ServerConfig, environ={})
    assert ports == {"data": config.port, "admin": config.admin_port}
    labels = pods["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodMonitor"]["spec"]["selector"]["matchLabels"] == labels
    assert all(port["targetPort"] in ports for port in found["Service"]["spec"]["ports"])
    paths = {route.path: route for route in ROUTES}
    for probe in ("startupProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert paths[asked["path"]].is_open  # a probe has no token
        assert asked["port"] in ports
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] in paths
    assert endpoint["port"] in ports
    assert endpoint["authorization"]["credentials"]["name"] == "infinistore"


def test_the_config_map_is_what_a_server_reads(tmp_path: Path) -> None:
    found = documents()
    path = tmp_path / "infinistore.toml"
    path.write_text(found["ConfigMap"]["data"]["infinistore.toml"])
    config = load(ServerConfig, environ={}, file=str(path))
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    memory = container["resources"]["limits"]["memory"]
    assert config.pool_bytes + 2 * 1024**3 == int(memory.removesuffix("Gi")) * 1024**3
    grace = found["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert config.drain_timeout_s < grace
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(config.token_file).parent) in mounts
    assert any(path.endswith("infinistore.toml") for path in mounts)
