"""Manifests in compose/kubernetes, which must conform to Kubernetes, a2a_celery and docs/kubernetes.md.

The JSON schemas of Kubernetes validate its own kinds. Separate tests check KEDA's ScaledObject and the kustomization.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import kubernetes_validate
import pytest
import yaml
from celery.bin.worker import worker

from a2a_celery.cli.commands import a2a
from a2a_celery.gateway.health import Health
from a2a_celery.push.network import PUBLIC_IPV6, is_allowed
from a2a_celery.settings import ENV_PREFIX, Settings
from a2a_celery.settings.loading import load_settings
from a2a_celery.store import Keys

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "compose" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "compose" / "Dockerfile").read_text(encoding="utf-8")

OLDEST, NEWEST = "1.29", "1.37"
"""Kubernetes releases whose schemas the base must satisfy."""

NOT_OURS = {"APP", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"}
"""Environment variables that are not settings of a2a_celery."""

ROLES = ("gateway", "worker", "watcher")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / name).read_text(encoding="utf-8")))


KUSTOMIZATION = documents("kustomization.yaml")[0]
OBJECTS: list[dict[str, Any]] = [each for name in KUSTOMIZATION["resources"] for each in documents(name)]
KEDA = [each for each in OBJECTS if each["apiVersion"].startswith("keda.sh/")]
STANDARD_OBJECTS = [each for each in OBJECTS if each not in KEDA]


def resource(kind: str, name: str) -> dict[str, Any]:
    [manifest] = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return manifest


def pod(role: str) -> dict[str, Any]:
    spec: dict[str, Any] = resource("Deployment", f"a2a-{role}")["spec"]["template"]["spec"]
    return spec


def container(role: str) -> dict[str, Any]:
    [spec] = pod(role)["containers"]
    return dict(spec)


def labels(role: str) -> dict[str, str]:
    template_labels: dict[str, str] = resource("Deployment", f"a2a-{role}")["spec"]["template"]["metadata"]["labels"]
    return template_labels


def selects(selector: Mapping[str, Any], role: str) -> bool:
    """Return True if a label selector matches the pods of `role`."""
    pod_labels = labels(role)
    by_label = all(pod_labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions)
    return by_label and all(pod_labels.get(each["key"]) in each["values"] for each in expressions)


def test_every_file_is_a_resource() -> None:
    assert (KUSTOMIZATION["apiVersion"], KUSTOMIZATION["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    assert {path.name for path in BASE.iterdir()} == {"kustomization.yaml", *KUSTOMIZATION["resources"]}
    names = [(each["kind"], each["metadata"]["name"]) for each in OBJECTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
@pytest.mark.parametrize("manifest", STANDARD_OBJECTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_the_resources_conform_to_the_schemas(manifest: dict[str, Any], release: str) -> None:
    kubernetes_validate.validate(manifest, release, strict=True)


def test_the_schemas_refuse_wrong_resources() -> None:
    broken = resource("Deployment", "a2a-worker") | {"spec": {"replicas": "two"}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


def test_the_base_has_all_documented_resources() -> None:
    resources = sorted((each["kind"], each["metadata"]["name"]) for each in OBJECTS if each["kind"] != "NetworkPolicy")

    assert resources == sorted(
        [
            ("ConfigMap", "a2a"),
            *(("Deployment", f"a2a-{role}") for role in ROLES),
            *(("PodDisruptionBudget", f"a2a-{role}") for role in ("gateway", "watcher")),
            ("ScaledObject", "a2a-worker"),
            ("Service", "a2a-gateway"),
        ]
    )


@pytest.mark.parametrize("role", ROLES)
def test_pods_have_only_the_required_privileges(role: str) -> None:
    user = int(re.search(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE)[1])  # type: ignore[index]
    spec = pod(role)

    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert container(role)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container(role)["resources"]["limits"]


@pytest.mark.parametrize("role", ROLES)
def test_secrets_are_files_and_only_tmp_is_written(role: str) -> None:
    mounts = {each["name"]: each for each in container(role)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod(role)["volumes"]}

    assert mounts == {
        "tmp": {"name": "tmp", "mountPath": "/tmp"},
        "secrets": {"name": "secrets", "mountPath": "/run/secrets/a2a", "readOnly": True},
    }
    assert volumes["secrets"]["secret"] == {"secretName": "a2a", "defaultMode": 0o440}
    assert volumes["tmp"]["emptyDir"]["medium"] == "Memory"
    assert "env" not in container(role), "a secret in a variable is shown by kubectl describe"


def test_the_settings_of_the_base_are_valid(tmp_path: Path) -> None:
    data = dict(resource("ConfigMap", "a2a")["data"])
    files = {name: path for name, path in data.items() if name.endswith("_FILE")}
    assert files == {"A2A_SECRET_KEY_FILE": "/run/secrets/a2a/secret_key"}
    (tmp_path / "secret_key").write_text("0123456789abcdef" * 4)
    names = {ENV_PREFIX + f.name.upper() for f in fields(Settings)} | NOT_OURS
    assert {name.removesuffix("_FILE") for name in data} <= names

    settings = load_settings({}, data | {"A2A_SECRET_KEY_FILE": str(tmp_path / "secret_key")})

    assert (settings.store_url, settings.log_format) == (data["A2A_STORE_URL"], "json")
    assert settings.secret_keys
    for role in ROLES:
        assert container(role)["envFrom"] == [{"configMapRef": {"name": "a2a"}}]
    assert not urlsplit(data["CELERY_BROKER_URL"]).password
    assert not urlsplit(data["A2A_STORE_URL"]).password


def options_of(command: list[str]) -> dict[str, Any]:
    """Return the options of a container's command, parsed by the command's own parser."""
    assert command[0] == "celery"
    program: click.Command = worker
    arguments = command[2:]
    if command[1] == "a2a":
        program, arguments = a2a.commands[command[2]], command[3:]
    else:
        assert command[1] == "worker"
    options_by_name = {name: each for each in program.params for name in (*each.opts, *each.secondary_opts)}
    values: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        option = options_by_name[word]
        assert isinstance(option, click.Option)
        values[word] = True if option.is_flag else option.type.convert(next(words), option, click.Context(program))
    return values


def test_the_commands_are_those_of_the_package() -> None:
    options = {role: options_of(container(role)["command"]) for role in ROLES}

    assert options["gateway"] == {"--host": "0.0.0.0", "--port": 8000}
    assert (options["worker"]["--concurrency"], options["worker"]["--task-events"]) == ("4", True)
    assert options["watcher"] == {"--metrics-host": "0.0.0.0", "--metrics-port": 9100}
    [gateway_port], [watcher_port] = container("gateway")["ports"], container("watcher")["ports"]
    assert gateway_port == {"name": "http", "containerPort": options["gateway"]["--port"]}
    assert watcher_port == {"name": "metrics", "containerPort": options["watcher"]["--metrics-port"]}
    service = resource("Service", "a2a-gateway")["spec"]
    assert selects({"matchLabels": service["selector"]}, "gateway")
    assert not any(selects({"matchLabels": service["selector"]}, role) for role in ("worker", "watcher"))
    assert [port["targetPort"] for port in service["ports"]] == ["http"]


def probes(role: str) -> Iterator[tuple[str, str, Any]]:
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        if kind in container(role):
            get = container(role)[kind]["httpGet"]
            yield kind.removesuffix("Probe"), get["path"], get["port"]


def test_the_probes_use_served_paths() -> None:
    served_paths = {route.path for route in Health(None, None, None, {}).routes()}  # type: ignore[arg-type]

    assert list(probes("gateway")) == [
        ("startup", "/health/live", "http"),
        ("liveness", "/health/live", "http"),
        ("readiness", "/health/ready", "http"),
    ]
    assert list(probes("watcher")) == [("startup", "/health/live", "metrics"), ("liveness", "/health/live", "metrics")]
    assert list(probes("worker")) == []
    assert {path for role in ROLES for _, path, _ in probes(role)} <= served_paths


def test_the_page_has_the_same_probes_replicas_and_graces() -> None:
    table = PAGE.partition("<!-- probes:")[2].partition("\n\n")[0]
    rows = {
        cells[0]: cells[1:]
        for cells in ([cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[3:])
    }
    grace = {role: pod(role)["terminationGracePeriodSeconds"] for role in ROLES}
    replicas = [resource("Deployment", f"a2a-{role}")["spec"].get("replicas", "KEDA's") for role in ROLES]

    assert rows["`terminationGracePeriodSeconds`"] == [str(grace[role]) for role in ROLES]
    assert rows["replicas"] == [str(number) for number in replicas]
    assert rows["liveness"] == ["`/health/live`", "none", "`/health/live` on the metrics port"]
    assert rows["readiness"] == ["`/health/ready`", "none", "none"]
    assert container("gateway")["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "5"]}}
    assert resource("Deployment", "a2a-gateway")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_budgets_and_selectors_match_the_pods() -> None:
    for role in ROLES:
        spec = resource("Deployment", f"a2a-{role}")["spec"]
        assert [each for each in ROLES if selects(spec["selector"], each)] == [role]
    for role in ("gateway", "watcher"):
        budget = resource("PodDisruptionBudget", f"a2a-{role}")["spec"]
        assert budget["minAvailable"] == 1 < resource("Deployment", f"a2a-{role}")["spec"]["replicas"]
        assert [each for each in ROLES if selects(budget["selector"], each)] == [role]


def test_keda_scales_by_the_runs_waiting_in_the_store() -> None:
    [scaled_object] = KEDA
    assert (scaled_object["apiVersion"], scaled_object["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled_object["spec"]
    assert set(spec) == {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "advanced", "triggers"}
    assert spec["scaleTargetRef"] == {"name": resource("Deployment", "a2a-worker")["metadata"]["name"]}
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"], "gateways are ready with a worker only"
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {"scaleDown": {"stabilizationWindowSeconds": 300}}
    store = urlsplit(resource("ConfigMap", "a2a")["data"]["A2A_STORE_URL"])
    [trigger] = spec["triggers"]
    assert trigger == {
        "type": "redis",
        "metadata": {
            "address": store.netloc,
            "databaseIndex": store.path.strip("/"),
            "listName": Keys(Settings().key_prefix).dispatch,
            "listLength": "8",
        },
    }
    assert "replicas" not in resource("Deployment", "a2a-worker")["spec"]


def test_network_policies_allow_only_the_required_connections() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "NetworkPolicy"}
    default_policy = policies.pop("a2a-nothing-else")
    assert default_policy["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(default_policy)
    assert all(selects(default_policy["podSelector"], role) for role in ROLES)

    def ports(direction: str, role: str) -> dict[str, list[Any]]:
        return {
            name: [port.get("port", "any") for rule in spec[direction] for port in rule["ports"]]
            for name, spec in policies.items()
            if direction in spec and selects(spec["podSelector"], role)
        }

    assert ports("ingress", "gateway") == {
        "a2a-gateway-from-ingress": ["http"],
        "a2a-metrics-from-monitoring": [8000, 9100],
    }
    assert ports("ingress", "watcher") == {"a2a-metrics-from-monitoring": [8000, 9100]}
    assert ports("ingress", "worker") == {}
    store = urlsplit(resource("ConfigMap", "a2a")["data"]["A2A_STORE_URL"])
    for role in ROLES:
        assert ports("egress", role) == {
            "a2a-to-redis": [store.port],
            "a2a-to-names": [53, 53],
            "a2a-to-the-internet": ["any"],
        }
    blocks = [each["ipBlock"] for each in policies["a2a-to-the-internet"]["egress"][0]["to"]]
    closed = [ip_network(text) for text in blocks[0]["except"]]
    for address in ("10.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "172.31.0.1"):
        assert not is_allowed(ip_address(address))
        assert any(ip_address(address) in network for network in closed)
    assert all(not is_allowed(network[0]) for network in closed)
    assert ip_network(blocks[1]["cidr"]) == PUBLIC_IPV6
    assert all(not is_allowed(ip_network(text)[1]) for text in blocks[1]["except"])


def test_the_page_names_the_files_without_repeating_them() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

    assert all(list(yaml.safe_load_all(block)) for block in blocks)
    assert "kind: ScaledObject" not in PAGE
    for name in {path.name for path in BASE.iterdir()} - {"kustomization.yaml", "configuration.yaml"}:
        assert f"`{name}`" in PAGE, name
    overlay = yaml.safe_load(blocks[0])
    [patch] = overlay["patches"]
    data = yaml.safe_load(patch["patch"])["data"]
    assert {name.removesuffix("_FILE") for name in data} - NOT_OURS <= {
        ENV_PREFIX + f.name.upper() for f in fields(Settings)
    }
    [image] = overlay["images"]
    assert {container(role)["image"] for role in ROLES} == {image["name"]}
