"""Sources of settings in layers: blank values count for nothing, no secret is shown, and all problems are reported at
once."""

import itertools
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.broker.embedded.adapter import embedded_path
from saga.broker.kafka.adapter import KafkaOptions, KafkaSettings, kafka_servers, kafka_settings
from saga.configuration import wiring
from saga.configuration.settings import LINK, OTHERS, Settings, environment_without, known_settings
from saga.errors import ConfigurationError
from saga.ops.sources import resolve_addresses
from saga.store.couchbase.adapter import NAME, CouchbaseSettings, couchbase_place, couchbase_settings
from saga.store.sqlite.adapter import sqlite_template
from saga.support.addresses import is_plain
from saga.support.clock import SystemClock

SECRET = "s3cr3t-hunter2"
GOES_WITH = {"SAGA_REGISTRY_PASSWORD": {"SAGA_REGISTRY": "https://registry", "SAGA_REGISTRY_USER": "ada"}}
SECRETS = ("SAGA_KAFKA_PASSWORD", "SAGA_COUCHBASE_PASSWORD", "SAGA_REGISTRY_PASSWORD")
KAFKA = {"SAGA_BROKER": "kafka://broker-1,broker-2:9093"}


def refused(environ: Mapping[str, str]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        Settings.read(environ)
    return raised.value


# ---------------------------------------------------------------- what is blank is not given


def file_with(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "saga.toml").write_text(text)
    monkeypatch.setenv("SAGA_CONFIG", str(folder / "saga.toml"))


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_a_blank_variable_does_not_override_the_file(
    blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_with('broker = "kafka://from-file"\nkafka_tls = true\ndrain_s = 7\n', tmp_path, monkeypatch)
    for name in ("SAGA_BROKER", "SAGA_KAFKA_TLS", "SAGA_DRAIN_S"):
        monkeypatch.setenv(name, blank)
    settings = Settings.from_environment(broker=blank, store=None)
    assert (settings.broker, settings.of(KafkaOptions).kafka_tls, settings.drain_s) == ("kafka://from-file", True, 7)


def test_a_setting_is_left_out_for_other_processes_wherever_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_with('http = "localhost:1"\ndrain_s = 7\ncache_max = 3\n', tmp_path, monkeypatch)
    monkeypatch.setenv("SAGA_DRAIN_S", "8")
    monkeypatch.setenv("SAGA_CACHE_MAX", " ")
    for address in ("", "localhost:2"):
        monkeypatch.setenv("SAGA_HTTP", address)
        environment = environment_without("SAGA_HTTP")
        assert "SAGA_CONFIG" not in environment
        settings = Settings.read(environment)
        assert (settings.http, settings.drain_s, settings.cache_max) == ("", 8, 3)
    file_with("drain_s = 9\n", tmp_path, monkeypatch)
    assert environment_without("SAGA_HTTP")["SAGA_CONFIG"] == str(tmp_path / "saga.toml")
    file_with("= 9", tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError, match="SAGA_CONFIG is "):
        environment_without("SAGA_HTTP")


@pytest.mark.parametrize("name", [*known_settings(), *OTHERS])
def test_blank_values_count_as_absent_in_every_layer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = name.removeprefix("SAGA_").lower()
    file_with(f'{field} = "  "\n', tmp_path, monkeypatch)
    if name != "SAGA_CONFIG":
        monkeypatch.setenv(name, " ")
    assert Settings.from_environment(**({field: ""} if name in known_settings() else {})) == Settings()


def test_a_blank_name_of_a_file_means_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_CONFIG", " ")
    assert Settings.from_environment() == Settings()


def test_a_later_layer_wins_whatever_the_earlier_ones_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = ("file", "variable", "flag")
    for are_there in itertools.product([True, False], repeat=3):
        there = dict(zip(layers, are_there, strict=True))
        file_with('broker = "kafka://file"' if there["file"] else "", tmp_path, monkeypatch)
        monkeypatch.setenv("SAGA_BROKER", "kafka://variable" if there["variable"] else "")
        last = next((layer for layer in reversed(layers) if there[layer]), None)
        settings = Settings.from_environment(broker="kafka://flag" if there["flag"] else "")
        assert settings.broker == (f"kafka://{last}" if last else Settings().broker)


async def test_a_blank_address_is_no_address_for_those_who_open_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path}/mine.db")
    async with wiring.open_broker("", SystemClock()):
        assert (tmp_path / "mine.db").exists()


# ---------------------------------------------------------------- secrets


ADDRESSES_WITH_SECRETS = [
    f"kafka://ada:{SECRET}@broker-1:9092",
    f"kafka://broker-1,ada:{SECRET}@broker-2",
    f"kafka://ada:{SECRET}",
    f"kafka://{SECRET}@broker-1",
    f"kafka://broker-1/?sasl.password={SECRET}",
    f"couchbase://ada:{SECRET}@db/shop",
    f"couchbases://db/shop?password={SECRET}",
    f"couchbase://ada:{SECRET}",
    f"sqlite://ada:{SECRET}@host/stores.db",
    f"embedded://ada:{SECRET}@host",
    f"redis://ada:{SECRET}@host",
    f"redis://:{SECRET}@host",
    f"postgres://ada:{SECRET}%40@host/db",
    f"ada:{SECRET}@broker-1:9092",
    f"https://ada:{SECRET}@host:80",
    f"ada:{SECRET}@0.0.0.0:8080",
]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "names a function of module 'shop_tokens': ModuleNotFoundError"),
        ("def (", "names a function of module 'shop_tokens': SyntaxError"),
        ("1 / 0", "names a function of module 'shop_tokens': ZeroDivisionError"),
        ("", "names a function of module 'shop_tokens': AttributeError"),
        ("given = 'eyJ0'", "names what is no plain function of module 'shop_tokens': give one that is not async"),
        ("async def given(): ...", "names what is no plain function of module 'shop_tokens': give one that is not"),
    ],
)
def test_an_invalid_function_for_tokens_is_reported_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, message: str
) -> None:
    if source is not None:
        (tmp_path / "shop_tokens.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_tokens", raising=False)
    how = {"SAGA_KAFKA_SASL": "oauthbearer", "SAGA_KAFKA_TLS": "true", "SAGA_KAFKA_TOKEN": "shop_tokens:given"}
    with pytest.raises(ConfigurationError) as raised:
        kafka_settings(Settings.read({**KAFKA, **how}))
    (problem,) = raised.value.problems
    assert problem.startswith(f"SAGA_KAFKA_TOKEN {message}")


@pytest.mark.parametrize("name", ["SAGA_BROKER", "SAGA_STORE", "SAGA_HTTP", "SAGA_KAFKA_TOKEN"])
@pytest.mark.parametrize("address", ADDRESSES_WITH_SECRETS)
def test_an_address_with_a_secret_is_refused_and_the_secret_is_nowhere(name: str, address: str) -> None:
    message = format_refusal({name: address})
    assert name in message
    assert SECRET not in message
    assert "ada" not in message


@pytest.mark.parametrize("address", ADDRESSES_WITH_SECRETS)
def test_errors_of_parsing_an_address_repeat_no_secret(address: str) -> None:
    assert not is_plain(address)
    for takes in (kafka_servers, lambda url: couchbase_place(url, "x"), embedded_path, sqlite_template):
        with pytest.raises(ValueError, match=r".") as refusal:
            takes(address)
        assert SECRET not in "".join(traceback.format_exception(refusal.value))
    with pytest.raises(ConfigurationError) as raised:
        resolve_addresses(address)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


PIECES = ["kafka", "couchbase", "couchbases", "sqlite", "embedded", "redis", "host", "ada", "9092", SECRET, SECRET]
SIGNS = ["://", ":", "@", "/", "?", "=", "&", "%40", ",", "[", "]", "{service}", ".", "#", " ", "\\", "://", ":", "@"]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.sampled_from(SIGNS)), max_size=9).map("".join).map(str.strip))
def test_no_address_that_is_refused_shows_what_may_be_a_secret(address: str) -> None:
    if is_plain(address):
        assert not re.search(rf"[@?=&%#]|:{SECRET}", address)
        return
    for name in ("SAGA_BROKER", "SAGA_STORE", "SAGA_HTTP", "SAGA_KAFKA_TOKEN"):
        if is_of_a_file(address):  # it may have any name
            continue
        message = format_refusal({name: address})
        assert SECRET not in message
        assert message or "@" not in address


def is_of_a_file(address: str) -> bool:
    return address.strip().startswith(("embedded:///", "sqlite:///"))


def format_refusal(environ: Mapping[str, str]) -> str:
    """Return the whole message about refused settings; nothing for valid ones."""
    try:
        Settings.read(environ)
    except ConfigurationError as why:
        return "".join(traceback.format_exception(why))
    return ""


@pytest.mark.parametrize("name", [name for name in known_settings() if re.search("PASSWORD|KEY|TOKEN", name)])
def test_a_secret_given_in_the_place_of_a_file_or_a_name_is_not_shown(name: str) -> None:
    if name in SECRETS:
        assert SECRET not in repr(Settings.read({**GOES_WITH.get(name, {}), name: SECRET}))
    else:
        why = refused({name: SECRET, "SAGA_DRAIN_S": "x"})
        assert SECRET not in "".join(traceback.format_exception(why))
        assert any(problem.startswith(f"{name}: ") for problem in why.problems)


def test_a_name_that_is_mistyped_does_not_show_what_it_was_given() -> None:
    assert SECRET not in str(refused({"SAGA_KAFKA_PASWORD": SECRET}))


@pytest.mark.parametrize(
    ("sasl", "way_out"), [("plain", "SAGA_KAFKA_SASL=scram-sha-512"), ("oauthbearer", "SAGA_KAFKA_TLS=true")]
)
def test_a_secret_goes_over_the_network_in_clear_only_by_name(sasl: str, way_out: str) -> None:
    who = {"SAGA_KAFKA_USERNAME": "ada", "SAGA_KAFKA_PASSWORD": SECRET}
    given = {**KAFKA, "SAGA_KAFKA_SASL": sasl, **({"SAGA_KAFKA_TOKEN": "shop.t:f"} if sasl == "oauthbearer" else who)}
    (problem,) = refused(given).problems
    assert "readable over the network" in problem
    assert way_out in problem
    assert "SAGA_KAFKA_CLEARTEXT=true" in problem
    assert Settings.read({**given, "SAGA_KAFKA_CLEARTEXT": "true"}).of(KafkaOptions).kafka_sasl == sasl
    assert Settings.read({**given, "SAGA_KAFKA_TLS": "true"}).of(KafkaOptions).kafka_sasl == sasl


def test_scram_shows_no_password_and_needs_no_tls() -> None:
    given = {"SAGA_KAFKA_SASL": "scram-sha-512", "SAGA_KAFKA_USERNAME": "ada", "SAGA_KAFKA_PASSWORD": SECRET}
    assert Settings.read({**KAFKA, **given}).of(KafkaOptions).kafka_sasl == "scram-sha-512"


# ---------------------------------------------------------------- Kubernetes


SERVICES = ["saga", "saga-http", "saga-payment", "saga-broker", "saga-kafka-tls", "saga-log", "saga-drain-s"]


def links(service: str) -> dict[str, str]:
    """Variables that Kubernetes gives to the pods of a namespace with this Service."""
    name, ip = service.upper().replace("-", "_"), "10.96.0.17"
    given = {f"{name}_SERVICE_HOST": ip, f"{name}_SERVICE_PORT": "8080", f"{name}_PORT": f"tcp://{ip}:8080"}
    for port, protocol in ((8080, "tcp"), (53, "udp"), (38412, "sctp")):
        begins = f"{name}_PORT_{port}_{protocol.upper()}"
        given |= {begins: f"{protocol}://{ip}:{port}", f"{begins}_PROTO": protocol}
        given |= {f"{begins}_PORT": str(port), f"{begins}_ADDR": ip}
        given[f"{name}_SERVICE_PORT_WEB_{port}"] = str(port)
    return given


@pytest.mark.parametrize("service", SERVICES)
def test_the_variables_of_a_kubernetes_service_are_passed_over_and_set_nothing(service: str) -> None:
    assert Settings.read(links(service)) == Settings()
    assert Settings.read({**links(service), "SAGA_DRAIN_S": "3"}).drain_s == 3


def test_several_services_are_passed_over_together() -> None:
    assert Settings.read({k: v for service in SERVICES for k, v in links(service).items()}) == Settings()


def test_no_setting_has_the_name_of_such_a_variable() -> None:
    endings = [
        "_".join(parts[n:]) for parts in (name.split("_") for name in known_settings()) for n in range(1, len(parts))
    ]
    assert not [ending for ending in endings if LINK.fullmatch(ending)]


@pytest.mark.parametrize(
    "name", ["SAGA_HTTP_PORT", "SAGA_SERVICE_PORT", "SAGA_PAYMENT_PORT", "SAGA_PORT_80_TCP", "SAGA_HTTP_SERVICE_HOST"]
)
def test_without_its_service_such_a_name_is_a_typing_error(name: str) -> None:
    assert f"{name} is not a setting" in str(refused({name: "8080"}))


def test_beside_a_service_other_names_are_still_typing_errors() -> None:
    for name in ("SAGA_PAYMENT_PORTS", "SAGA_PAYMENT_SERVICE", "SAGA_ORDER_PORT", "SAGA_PAYMENT_PORT_X_TCP"):
        assert name in str(refused({**links("saga-payment"), name: "x"}))


def test_a_file_has_no_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_with('payment_service_host = "10.96.0.17"\npayment_service_port = 80\n', tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError, match="payment_service_host in"):
        Settings.from_environment()


# ---------------------------------------------------------------- all problems at once


def test_wrong_values_and_wrong_combinations_are_reported_together() -> None:
    problems = refused(
        {
            **KAFKA,
            "SAGA_DRAIN_S": "soon",
            "SAGA_BROKR": "x",
            "SAGA_KAFKA_SASL": "scram-sha-512",
            "SAGA_KAFKA_MIN_INSYNC": "5",
            "SAGA_STORE": "couchbase://db",
            "SAGA_INFLIGHT_MIN": "200",
            "SAGA_INFLIGHT_MAX": "100",
        }
    ).problems
    for part in (
        *("SAGA_DRAIN_S is 'soon'", "SAGA_BROKR is not a setting", "SAGA_INFLIGHT_MIN=200", "the bucket is missing"),
        *("SAGA_KAFKA_MIN_INSYNC=5", "needs SAGA_KAFKA_USERNAME", "couchbase needs SAGA_COUCHBASE_USERNAME"),
    ):
        assert sum(part in problem for problem in problems) == 1, part
    assert len(problems) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [("drain_s = ", "Invalid value"), ('[kafka]\n[more]\nsasl = "plain"', "kafka is no single value")],
)
def test_problems_of_the_file_are_reported_with_all_others(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_with(text, tmp_path, monkeypatch)
    monkeypatch.setenv("SAGA_CACHE_MAX", "many")
    monkeypatch.setenv("SAGA_KAFKA_SASL", "scram-sha-512")  # whose user may stand in what cannot be read
    with pytest.raises(ConfigurationError) as raised:
        Settings.from_environment(broker="kafka://here")
    *of_the_file, last = raised.value.problems
    assert message in of_the_file[0]
    assert len(of_the_file) == text.count("[") or 1
    assert last.startswith("SAGA_CACHE_MAX is 'many'")


def test_a_wrong_setting_causes_no_further_problems() -> None:
    given = {**KAFKA, "SAGA_KAFKA_SASL": "scram", "SAGA_KAFKA_USERNAME": "ada", "SAGA_KAFKA_MIN_INSYNC": "many"}
    assert len(refused({**given, "SAGA_KAFKA_REPLICATION": "1"}).problems) == 2


SASLS = ("none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer")


def ways(prefix: str, file: str) -> Iterator[dict[str, str]]:
    """Every way to give, or leave out, user, password, certificates."""
    for user, password, password_file, ca, cert, key in itertools.product([False, True], repeat=6):
        given = {"USERNAME": user, "PASSWORD": password, "PASSWORD_FILE": password_file, "CA_FILE": ca}
        given |= {"CERT_FILE": cert, "KEY_FILE": key}
        yield {f"{prefix}_{name}": file if name.endswith("FILE") else "ada" for name, is_so in given.items() if is_so}


def test_settings_that_were_read_are_what_the_adapters_can_use(tmp_path: Path) -> None:
    """Nothing is looked at again behind them: of all ways to say who we are, those that are taken work."""
    (tmp_path / "file").write_text("x")
    taken = 0
    for who in ways("SAGA_KAFKA", str(tmp_path / "file")):
        for sasl, tls, token in itertools.product(SASLS, ["true", ""], ["os:getcwd", ""]):
            how = {"SAGA_KAFKA_SASL": sasl, "SAGA_KAFKA_TLS": tls, "SAGA_KAFKA_TOKEN": token}
            settings = or_none({**KAFKA, "SAGA_KAFKA_CLEARTEXT": "yes", **who, **how})
            if settings is not None:
                assert_usable_kafka(kafka_settings(settings))
                taken += 1
    for who in ways("SAGA_COUCHBASE", str(tmp_path / "file")):
        for place in ("a/b", "a/b/c", "a/b/_c", "a/b/{service}/d.e", "a/b/c/_default"):
            for scheme in ("couchbase", "couchbases"):
                settings = or_none({"SAGA_STORE": f"{scheme}://{place}", **who})
                if settings is not None:
                    assert_usable_couchbase(couchbase_settings(settings, "payment"))
                    taken += 1
    assert taken > 80


def assert_usable_kafka(settings: KafkaSettings) -> None:
    """All that aiokafka takes together, and nothing that it would pass over."""
    assert all(re.search(r".:[0-9]+$", server) for server in settings.servers)
    assert settings.tls or not (settings.ca_file or settings.cert_file)
    assert (settings.cert_file is None) == (settings.key_file is None)
    by_token, by_password = settings.token is not None, bool(settings.username and settings.password)
    assert by_token == (settings.sasl == "OAUTHBEARER")
    assert by_password == (settings.sasl not in (None, "OAUTHBEARER"))
    assert by_password or not (settings.username or settings.password)
    assert settings.min_insync_replicas <= settings.replication_factor


def assert_usable_couchbase(settings: CouchbaseSettings) -> None:
    """All that Couchbase's SDK takes together, and nothing that it would pass over."""
    assert settings.bucket
    assert all(NAME.fullmatch(name) for name in (settings.scope, settings.collection) if name is not None)
    assert (settings.cert_file is None) == (settings.key_file is None)
    assert settings.cert_file is not None or (settings.username and settings.password)
    assert settings.tls or not (settings.ca_file or settings.cert_file)


def or_none(given: Mapping[str, str]) -> Settings | None:
    try:
        return Settings.read(given)
    except ConfigurationError:
        return None
