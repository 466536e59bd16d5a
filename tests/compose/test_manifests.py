"""Manifests of `docs/deploy/` for Kubernetes: valid, and fit for the services and their settings."""

import importlib
import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it brings no types
import pytest
import yaml

from saga.broker.kafka.adapter import KafkaOptions
from saga.configuration.settings import Settings, known_settings
from saga.contracts.library import find_library
from saga.engine.prepared_service import reads_of
from saga.messaging.names import is_without_events
from saga.store.couchbase.adapter import CouchbaseOptions
from services.audit.books import SERVICES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "deploy"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
PEOPLE = ("operator", "administrator")
"""Deployments in which people call commands."""
VERSIONS = ("1.30.0", kubernetes_validate.latest_version())
KEDA = "keda.sh/v1alpha1"
DRAIN_AND_GRACE_S = Settings().drain_s + 5
TRIGGER_KEYS = {"bootstrapServers", "consumerGroup", "topic", "lagThreshold", "offsetResetPolicy"}
"""Keys that are used of those that KEDA's Kafka trigger takes: https://keda.sh/docs/latest/scalers/apache-kafka/"""


def resources() -> list[Any]:
    return [one for file in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text("utf-8"))]


def named(kind: str, name: str) -> Any:
    (found,) = (one for one in resources() if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def container(service: str) -> Any:
    (only,) = named("Deployment", service)["spec"]["template"]["spec"]["containers"]
    return only


def settings_of(given: Any) -> Settings:
    """Settings of a container. Its files are not here, so another one stands for each."""
    of_ours = dict(named("ConfigMap", "saga-settings")["data"]) | {
        one["name"]: one["value"] for one in given["env"] if one["name"].startswith("SAGA_")
    }
    files = {name: value for name, value in of_ours.items() if name.endswith("_FILE") and value}
    mounted = {mount["mountPath"] for mount in given["volumeMounts"]}
    assert all(str(Path(file).parent) in mounted for file in files.values())
    return Settings.read(of_ours | dict.fromkeys(files, str(FOLDER / "settings.yaml")))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_resource_that_is_its_own(version: str) -> None:
    own = [one for one in resources() if one["apiVersion"] != KEDA]
    assert {one["kind"] for one in own} == {
        "ConfigMap",
        "Deployment",
        "Job",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
    }
    for one in own:
        kubernetes_validate.validate(one, version, strict=True)


def test_a_wrong_field_would_be_found() -> None:
    wrong = named("Deployment", "payment")
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_pod_runs_its_service_as_the_user_of_the_image_and_may_write_nothing(service: str) -> None:
    pod, only = named("Deployment", service)["spec"]["template"]["spec"], container(service)
    assert only["args"] == ["run", f"services.{service}"]
    assert re.search(rf"^USER {pod['securityContext']['runAsUser']}$", DOCKERFILE, re.MULTILINE)
    assert pod["securityContext"]["runAsNonRoot"]
    assert only["securityContext"]["readOnlyRootFilesystem"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN_AND_GRACE_S


@pytest.mark.parametrize("service", SERVICES)
def test_the_settings_of_a_pod_can_work(service: str) -> None:
    mounted = {mount["mountPath"]: mount["name"] for mount in container(service)["volumeMounts"]}
    assert {"/secrets/kafka", "/secrets/couchbase"} <= mounted.keys()
    volumes = {volume["name"] for volume in named("Deployment", service)["spec"]["template"]["spec"]["volumes"]}
    assert set(mounted.values()) == volumes
    given = dict(named("ConfigMap", "saga-settings")["data"])
    given |= {one["name"]: one["value"] for one in container(service)["env"]}
    of_ours = {name: value for name, value in given.items() if name.startswith("SAGA_")}
    assert of_ours.keys() <= known_settings().keys()
    files = {name: value for name, value in of_ours.items() if name.endswith("_FILE")}
    assert all(str(Path(file).parent) in mounted for file in files.values())
    # Here the mounted files are not; any file stands for them.
    settings = Settings.read(of_ours | dict.fromkeys(files, str(FOLDER / "settings.yaml")))
    assert settings.store.endswith(f"/{service}")
    assert settings.of(CouchbaseOptions).couchbase_username == settings.of(KafkaOptions).kafka_username == service


def test_no_pod_is_given_variables_of_services() -> None:
    pods = [one["spec"]["template"]["spec"] for one in resources() if "template" in one.get("spec", {})]
    assert len(pods) == len([*SERVICES, "topics", *PEOPLE])
    assert all(pod["enableServiceLinks"] is False for pod in pods)


def test_a_job_makes_the_topics_of_all_services_as_a_user_of_its_own() -> None:
    pod = named("Job", "topics")["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    assert only["args"][:2] == ["topics", "apply"]
    assert set(only["args"][2:]) == {f"services.{service}" for service in SERVICES}
    assert only["image"] == container("order")["image"]
    assert [mount["name"] for mount in only["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    given = dict(named("ConfigMap", "saga-settings")["data"]) | {one["name"]: one["value"] for one in only["env"]}
    files = {name for name, value in given.items() if name.endswith("_FILE") and value}
    assert all(given[name].startswith(f"{only['volumeMounts'][0]['mountPath']}/") for name in files)
    settings = Settings.read(given | dict.fromkeys(files, str(FOLDER / "settings.yaml")))
    assert settings.of(KafkaOptions).kafka_username not in SERVICES


@pytest.mark.parametrize("who", ["administrator", pytest.param("operator", marks=pytest.mark.slow)])
def test_people_call_commands_in_a_pod_with_the_settings_and_a_user_of_its_own(who: str) -> None:
    pod, only = named("Deployment", who)["spec"]["template"]["spec"], container(who)
    assert only["image"] == container("order")["image"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert only["securityContext"]["readOnlyRootFilesystem"]
    assert [mount["name"] for mount in only["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    settings = settings_of(only)
    assert settings.of(KafkaOptions).kafka_username not in SERVICES
    topics = named("Job", "topics")["spec"]["template"]["spec"]
    if who == "operator":
        assert settings.of(CouchbaseOptions).couchbase_username == "operator"
        assert {settings.store.replace("{service}", service) for service in SERVICES} == {
            settings_of(container(service)).store for service in SERVICES
        }
    else:
        assert pod["volumes"] == topics["volumes"]
        assert settings.of(KafkaOptions) == settings_of(topics["containers"][0]).of(KafkaOptions)


@pytest.mark.parametrize("service", SERVICES)
def test_probes_ask_where_the_service_answers(service: str) -> None:
    only = container(service)
    assert [port["containerPort"] for port in only["ports"] if port["name"] == "http"] == [8080]
    assert named("ConfigMap", "saga-settings")["data"]["SAGA_HTTP"].endswith(":8080")
    assert only["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "http"}
    assert only["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "http"}


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_lag_scales_a_service_up_to_the_partitions_of_its_topics(service: str) -> None:
    spec = named("ScaledObject", service)["spec"]
    assert named("Deployment", spec["scaleTargetRef"]["name"])["metadata"]["name"] == service
    assert "replicas" not in named("Deployment", service)["spec"]  # or each `kubectl apply` would undo the scaling
    partitions = {topic.partitions for topic in find_library(ROOT / "services").topics.values()}
    assert partitions == {spec["maxReplicaCount"]}
    assert 1 < spec["minReplicaCount"] < spec["maxReplicaCount"]
    triggers = spec["triggers"]
    reads = reads_of(importlib.import_module(f"services.{service}").__dict__[service].declared)
    assert [one["metadata"]["topic"] for one in triggers] == sorted(t for t in reads if not is_without_events(t))
    for trigger in triggers:
        assert trigger["type"] == "kafka"
        assert trigger["metadata"].keys() == TRIGGER_KEYS
        assert all(isinstance(value, str) for value in trigger["metadata"].values())  # KEDA takes nothing else
        assert trigger["metadata"]["consumerGroup"] == service
        servers = trigger["metadata"]["bootstrapServers"]
        assert named("ConfigMap", "saga-settings")["data"]["SAGA_BROKER"] == f"kafka://{servers}"
        asks = named("TriggerAuthentication", trigger["authenticationRef"]["name"])
        assert {one["parameter"] for one in asks["spec"]["secretTargetRef"]} == {
            "sasl",
            "username",
            "password",
            "tls",
            "ca",
        }


@pytest.mark.parametrize("service", SERVICES)
def test_nodes_are_taken_away_one_pod_at_a_time(service: str) -> None:
    budget, deployment = named("PodDisruptionBudget", service)["spec"], named("Deployment", service)["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "else a node with a pod that never gets ready stays"
    assert budget["selector"] == deployment["selector"]
    assert budget["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
