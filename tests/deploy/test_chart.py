"""The Helm chart: what it renders is what Kubernetes and its operators take, and asks for metrics and options that there are."""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from emberline.serving.cli import configure_serve

Manifests = list[dict[str, Any]]
Render = Callable[[dict[str, Any]], Manifests]

CUSTOM = {"ServiceMonitor", "PrometheusRule"}  # of the Prometheus operator: no schema of Kubernetes
CLUSTER = "1.33"
BASE = {"image": {"repository": "registry.example/emberline"}, "models": {"existingClaim": "models"}}
RULES = {"enabled": True, "versionAgeSeconds": 86400, "deltaSeconds": 7200, "runbooks": "https://docs.example/operations.html"}
MONITORING = {"serviceMonitor": {"enabled": True}, "rules": RULES, "dashboard": {"enabled": True}}
TRITON = {"backend": "triton", "triton": {"probeModel": "movielens", "instances": 2}}
TLS = {"existingSecret": "certificate"}
CASES: dict[str, dict[str, Any]] = {
    "embedded": {},
    "workers": {
        "server": {
            "workers": 4,
            "tables": "mapped",
            "threads": 2,
            "otelEndpoint": "http://collector:4318",
            "logRequests": True,
            "extraArgs": ["--max-request-mib=4"],
        }
    },
    "triton": {**TRITON, "monitoring": MONITORING, "autoscaling": {"enabled": True}},
    "triton on CPUs": {"backend": "triton", "triton": {"device": "cpu", "gpus": 0}},
    "tokens and TLS": {"tokens": {"existingSecret": "tokens"}, "tls": TLS, "service": {"type": "LoadBalancer"}},
    "certificates of callers": {"tls": {**TLS, "clientCa": True}},
    "autoscaling": {"autoscaling": {"enabled": True}, "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]}},
    "monitoring": {"monitoring": MONITORING, "service": {"type": "NodePort"}},
    "a claim of its own": {"models": {"existingClaim": "", "claim": {"enabled": True, "storageClassName": "fast"}}},
    "a volume": {"models": {"existingClaim": "", "volume": {"csi": {"driver": "models.example", "readOnly": True}}, "subPath": "models"}},
    "a URL": {
        "models": {"existingClaim": "", "url": "s3://bucket/models"},
        "env": [{"name": "AWS_REGION", "value": "eu"}],
        "podDisruptionBudget": {"enabled": False},
    },
}
REFUSED: dict[str, dict[str, Any]] = {
    "give one of existingClaim": {"models": {"existingClaim": ""}},
    "image.repository": {"image": {"repository": ""}},
    "Triton has neither": {**TRITON, "tokens": {"existingSecret": "tokens"}},
    "triton.instances": {**TRITON, "server": {"workers": 2}},
    "Triton does not": {**TRITON, "server": {"otelEndpoint": "http://collector:4318"}},
    "0 with triton.device cpu": {"backend": "triton", "triton": {"device": "cpu"}},
    "graceSeconds": {"drain": {"graceSeconds": 30}},
    "needs tls.existingSecret": {"tls": {"clientCa": True}},
    "by nothing": {"autoscaling": {"enabled": True, "cpuUtilization": 0, "metric": {"enabled": False}}},
    "at '/backend'": {"backend": "torchserve"},
    "additional properties 'replica' not allowed": {"replica": 3},
}


@pytest.fixture(scope="module")
def chart(repository: Path) -> Path:
    return repository / "deploy" / "helm" / "emberline"


@pytest.fixture(scope="module")
def helm() -> str:
    beside = Path(sys.executable).parent / "helm"
    found = str(beside) if beside.is_file() else shutil.which("helm")
    if found is None:
        pytest.skip("helm is not here: `make helm` fetches it")
    return found


def call(helm: str, values: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    given = {key: {**value, **values.get(key, {})} for key, value in BASE.items()}
    return subprocess.run([helm, *arguments, "--values", "-"], input=yaml.safe_dump({**values, **given}), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def render(helm: str, chart: Path) -> Render:
    def rendered(values: dict[str, Any]) -> Manifests:
        done = call(helm, values, "template", "one", str(chart), "--namespace", "shop")
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    return rendered


@pytest.fixture(scope="module")
def all_rendered(render: Render) -> dict[str, Manifests]:
    return {name: render(values) for name, values in CASES.items()}


def of_kind(manifests: Manifests, kind: str) -> dict[str, Any]:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def pod_of(manifests: Manifests) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_lint_finds_nothing(helm: str, chart: Path) -> None:
    done = call(helm, {"monitoring": MONITORING}, "lint", "--strict", str(chart))
    assert (done.returncode, "0 chart(s) failed" in done.stdout + done.stderr) == (0, True), done.stdout + done.stderr


def test_kubernetes_takes_all_of_it(all_rendered: dict[str, Manifests], said: list[str]) -> None:
    distinct = {json.dumps(one, sort_keys=True): one for manifests in all_rendered.values() for one in manifests if one["kind"] not in CUSTOM}
    for manifest in distinct.values():
        kubernetes_validate.validate(manifest, CLUSTER, strict=True)
    said.append(f"chart: {len(distinct)} manifests checked for Kubernetes {CLUSTER}")
    assert {one["kind"] for one in distinct.values()} == {
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy"),
        *("PersistentVolumeClaim", "PodDisruptionBudget", "Service", "ServiceAccount"),
    }


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_together_is_refused(helm: str, chart: Path, message: str) -> None:
    done = call(helm, REFUSED[message], "template", "one", str(chart))
    assert done.returncode != 0
    assert message in done.stderr


def test_the_server_has_every_option(all_rendered: dict[str, Manifests]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    configure_serve(parser)
    for name, manifests in all_rendered.items():
        _, container = pod_of(manifests)
        command, *arguments = container["args"]
        assert command == "serve"
        args, unknown = parser.parse_known_args(arguments)
        assert unknown == []
        assert (args.http_port, args.grpc_port, args.metrics_port, args.model_control) == (8000, 8001, 8002, False)
        assert str(args.models) == ("s3://bucket/models" if name == "a URL" else "/models")


def test_pods_are_closed_and_what_is_written_is_in_memory_or_scratch(all_rendered: dict[str, Manifests]) -> None:
    for name, manifests in all_rendered.items():
        pod, container = pod_of(manifests)
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        written = {name for name, mount in mounts.items() if not mount.get("readOnly")}
        assert all("emptyDir" in volumes[one] for one in written)
        assert written - {"shm"} == {"tmp", "cache"}
        assert ("shm" in written) == name.startswith("triton")
        assert pod["terminationGracePeriodSeconds"] > int(container["lifecycle"]["preStop"]["exec"]["command"][1]) + 20


def test_labels_select_what_they_should(all_rendered: dict[str, Manifests]) -> None:
    for manifests in all_rendered.values():
        deployment = of_kind(manifests, "Deployment")
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selectors = [deployment["spec"]["selector"]["matchLabels"], *(one["spec"]["selector"] for one in manifests if one["kind"] == "Service")]
        assert all(selector.items() <= labels.items() for selector in selectors)
        ports = {port["name"] for port in pod_of(manifests)[1]["ports"]}
        assert {port["targetPort"] for one in manifests if one["kind"] == "Service" for port in one["spec"]["ports"]} == ports


def test_probes_follow_tls(all_rendered: dict[str, Manifests]) -> None:
    def ready(name: str) -> dict[str, Any]:
        probe: dict[str, Any] = pod_of(all_rendered[name])[1]["readinessProbe"]
        return probe

    assert ready("embedded")["httpGet"] == {"path": "/v2/health/ready", "port": "http", "scheme": "HTTP"}
    assert ready("tokens and TLS")["httpGet"]["scheme"] == "HTTPS"
    assert ready("certificates of callers")["tcpSocket"] == {"port": "http"}
    assert ready("triton")["exec"]["command"][:2] == ["emberline", "probe"]
    assert pod_of(all_rendered["embedded"])[1]["startupProbe"]["failureThreshold"] == 360


def test_secrets_are_where_the_options_say(all_rendered: dict[str, Manifests]) -> None:
    pod, container = pod_of(all_rendered["tokens and TLS"])
    assert {"--token-file=/secrets/tokens/tokens", "--tls-cert=/secrets/tls/tls.crt", "--tls-key=/secrets/tls/tls.key"} <= set(container["args"])
    assert {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume} == {"tokens", "certificate"}
    assert "--tls-client-ca=/secrets/tls/ca.crt" in pod_of(all_rendered["certificates of callers"])[1]["args"]


def test_gpus_are_asked_for_with_triton_only(all_rendered: dict[str, Manifests]) -> None:
    limits = {name: pod_of(manifests)[1]["resources"]["limits"].get("nvidia.com/gpu") for name, manifests in all_rendered.items()}
    assert {name: gpus for name, gpus in limits.items() if gpus} == {"triton": "1"}


def test_ports_of_metrics_stay_inside(all_rendered: dict[str, Manifests]) -> None:
    outside = [one for one in all_rendered["tokens and TLS"] if one["kind"] == "Service" and one["spec"]["type"] != "ClusterIP"]
    assert [port["name"] for one in outside for port in one["spec"]["ports"]] == ["http", "grpc"]


def test_the_operator_finds_the_metrics(all_rendered: dict[str, Manifests]) -> None:
    manifests = all_rendered["monitoring"]
    spec = of_kind(manifests, "ServiceMonitor")["spec"]
    assert spec.keys() == {"selector", "namespaceSelector", "endpoints"}
    assert spec["namespaceSelector"] == {"matchNames": ["shop"]}
    (endpoint,) = spec["endpoints"]
    assert endpoint == {"port": "metrics", "path": "/metrics", "interval": "15s"}
    services = [one for one in manifests if one["kind"] == "Service" and spec["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()]
    assert [port["name"] for one in services for port in one["spec"]["ports"]].count("metrics") == 1


def alerts(manifests: Manifests) -> list[dict[str, Any]]:
    groups = of_kind(manifests, "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def told(repository: Path) -> set[str]:
    """All names of series that docs/observability.md has in its table."""
    names = re.findall(r"^\| `(emberline_\w+)` \| ([^|]*)\|", (repository / "docs" / "observability.md").read_text(), re.MULTILINE)
    return {name + end for name, unit in names for end in (("_bucket", "_sum", "_count") if "histogram" in unit else ("",))}


def expressions(chart: Path, all_rendered: dict[str, Manifests]) -> Iterator[str]:
    for name in ("monitoring", "triton"):
        yield from (rule["expr"] for rule in alerts(all_rendered[name]))
    dashboard = json.loads((chart / "files" / "dashboard.json").read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    rules = yaml.safe_load((chart / "files" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    yield from (rule["seriesQuery"] for rule in rules)


def test_every_metric_is_there(chart: Path, told: set[str], all_rendered: dict[str, Manifests], said: list[str]) -> None:
    used = {name for text in expressions(chart, all_rendered) for name in re.findall(r"\bemberline_\w+", text)}
    said.append(f"chart: {len(used)} metrics in alerts, dashboard and adapter")
    assert used - told == set()
    assert len(used) > 15


def test_the_autoscaler_asks_for_what_the_adapter_makes(chart: Path, all_rendered: dict[str, Manifests]) -> None:
    rules = yaml.safe_load((chart / "files" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    made = {re.sub(r"_total$", "_per_second", re.match(r"\w+", rule["seriesQuery"])[0]) for rule in rules}  # type: ignore[index]
    asked = set()
    for name in ("autoscaling", "triton"):
        spec = of_kind(all_rendered[name], "HorizontalPodAutoscaler")["spec"]
        assert [metric["type"] for metric in spec["metrics"]] == ["Resource", "Pods"]
        asked.add(spec["metrics"][1]["pods"]["metric"]["name"])
    assert asked == made == {"emberline_waiting_requests", "emberline_requests_per_second"}


def test_every_alert_has_its_runbook(repository: Path, all_rendered: dict[str, Manifests]) -> None:
    page = (repository / "docs" / "operations.md").read_text()
    headings = {re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    rules = [rule for name in ("monitoring", "triton") for rule in alerts(all_rendered[name])]
    for rule in rules:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["annotations"]["runbook_url"].split("#")[1] in headings
        assert f"`{rule['alert']}`" in page
    assert len({rule["alert"] for rule in rules}) == 13
