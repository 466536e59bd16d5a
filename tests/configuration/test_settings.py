"""Settings are read as a whole: good ones become values, bad ones are all named at once."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from saga.broker import port
from saga.broker.embedded.adapter import embedded_path
from saga.broker.kafka.adapter import KafkaOptions, kafka_servers, kafka_settings
from saga.configuration.settings import Settings, all_options, known_settings
from saga.configuration.wiring import limits_of
from saga.errors import ConfigurationError
from saga.ops.sources import open_stores
from saga.policies.concurrency import INFLIGHT_MIN
from saga.store.couchbase.adapter import CouchbaseOptions, couchbase_place
from saga.store.sqlite.adapter import SQLITE, sqlite_path
from saga.support.clock import SystemClock


def problems(environ: Mapping[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        Settings.read(environ)
    return refused.value.problems


def test_nothing_has_to_be_set() -> None:
    assert Settings.read({"HOME": "/home/ada"}) == Settings()
    assert Settings().broker == "embedded:///.saga/broker.db"
    assert sqlite_path(Settings().store, "payment") == Path(".saga/payment.db")


def test_everything_can_be_set() -> None:
    settings = Settings.read(
        {
            "SAGA_BROKER": "embedded:////var/saga/broker.db",
            "SAGA_STORE": "sqlite:///stores/{service}.db",
            "SAGA_INFLIGHT_MAX": "50",
            "SAGA_INFLIGHT_MIN": "5",
            "SAGA_CACHE_MAX": "0",
            "SAGA_DRAIN_S": "2.5",
            "SAGA_LOG": "JSON",
            "SAGA_LOG_LEVEL": "warning",
        }
    )
    assert settings == Settings(
        broker="embedded:////var/saga/broker.db",
        store="sqlite:///stores/{service}.db",
        inflight_max=50,
        inflight_min=5,
        cache_max=0,
        drain_s=2.5,
        log="json",
        log_level="warning",
    )


SETTINGS = [
    (field.name, getattr(kind, field.name))
    for kind in (Settings(), *(options.kind() for options in all_options()))
    for field in fields(kind)
    if field.name != "options"
]
"""Each with its default."""


def test_every_setting_has_a_variable() -> None:
    assert sorted(f"SAGA_{name.upper()}" for name, _ in SETTINGS) == sorted(known_settings())


def test_the_defaults_are_values_that_could_be_given() -> None:
    given = {f"SAGA_{name.upper()}": str(value) for name, value in SETTINGS}
    assert Settings.read(given) == Settings()


def test_all_problems_are_reported_at_once_with_what_would_be_right() -> None:
    assert problems(
        {
            "SAGA_BROKER": "redis://localhost",
            "SAGA_STORE": "sqlite://stores/x.db",
            "SAGA_INFLIGHT_MAX": "many",
            "SAGA_INFLIGHT_MIN": "0",
            "SAGA_CACHE_MAX": "-1",
            "SAGA_DRAIN_S": "nan",
            "SAGA_LOG": "xml",
            "SAGA_LOG_LEVEL": "loud",
        }
    ) == (
        "SAGA_BROKER is 'redis://localhost': there is no broker 'redis'; use embedded:///file (relative) or "
        "embedded:////folder/file (absolute), or kafka://host:9092",
        "SAGA_CACHE_MAX is '-1': it must be a whole number of documents from 0 to 10000000",
        "SAGA_DRAIN_S is 'nan': it must be a number of seconds from 0 to 3600",
        "SAGA_INFLIGHT_MAX is 'many': it must be a whole number of messages from 1 to 100000",
        "SAGA_INFLIGHT_MIN is '0': it must be a whole number of messages from 1 to 100000",
        "SAGA_LOG is 'xml': it must be one of: auto, json, text",
        "SAGA_LOG_LEVEL is 'loud': it must be one of: debug, info, warning, error",
        "SAGA_STORE is 'sqlite://stores/x.db': a file is meant, so three slashes follow the colon: "
        "sqlite:///stores/x.db",
    )


def test_the_least_in_flight_is_no_more_than_the_most() -> None:
    expected = (
        "SAGA_INFLIGHT_MIN=200 is more than SAGA_INFLIGHT_MAX=100: make it less, or the same to have as many in flight "
        "however slow the store is",
    )
    assert problems({"SAGA_INFLIGHT_MIN": "200", "SAGA_INFLIGHT_MAX": "100"}) == expected
    kafka = {"SAGA_BROKER": "kafka://here:9092", "SAGA_KAFKA_REPLICATION": "1"}
    both = problems({**kafka, "SAGA_INFLIGHT_MIN": "200", "SAGA_INFLIGHT_MAX": "100"})
    assert both[0] == expected[0]
    assert "SAGA_KAFKA_MIN_INSYNC=2 is more than" in both[1]
    assert Settings.read({"SAGA_INFLIGHT_MIN": "100", "SAGA_INFLIGHT_MAX": "100"}).inflight_min == 100
    assert problems({"SAGA_INFLIGHT_MIN": "1001"}) != ()


def test_few_in_flight_at_most_need_no_word_about_the_least() -> None:
    assert Settings.read({"SAGA_INFLIGHT_MAX": "5"}) == Settings(inflight_max=5)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("SAGA_BROCKER", "SAGA_BROCKER is not a setting; did you mean SAGA_BROKER?"),
        ("SAGA_LOGLEVEL", "SAGA_LOGLEVEL is not a setting; did you mean SAGA_LOG_LEVEL?"),
        ("SAGA_CONTRACT", "SAGA_CONTRACT is not a setting; did you mean SAGA_CONTRACTS?"),
    ],
)
def test_a_mistyped_name_is_a_problem_with_a_suggestion(name: str, problem: str) -> None:
    assert problems({name: "x"}) == (problem,)


def test_a_name_like_no_other_is_answered_with_all_there_are() -> None:
    (problem,) = problems({"SAGA_ZOOKEEPER_URL": "x"})
    assert all(name in problem for name in known_settings())


def test_variables_of_other_programs_are_ignored() -> None:
    assert Settings.read({"SAGA_CONTRACTS": "elsewhere", "SAGA_TEST_SEED": "7", "OTHER": "x"}) == Settings()


@pytest.mark.parametrize("setting", ["SAGA_BROKER=embedded", "SAGA_STORE=sqlite"])
def test_a_path_that_is_relative_and_was_meant_from_the_root_is_refused_with_both_spellings(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (name, scheme), first = setting.split("="), tmp_path.parts[1]
    with pytest.raises(ConfigurationError, match=f"{scheme}:////{first}/saga/all.db") as raised:
        Settings.read({name: f"{scheme}:///{first}/saga/all.db"})
    assert f"make the folder {first} here first" in str(raised.value)
    (tmp_path / first).mkdir()
    Settings.read({name: f"{scheme}:///{first}/saga/all.db"})
    Settings.read({name: f"{scheme}:////{first}/saga/all.db"})
    Settings.read({name: f"{scheme}:///.saga/all.db"})


@pytest.mark.parametrize("url", ["embedded:", "embedded://", "embedded:///", "embedded:///folder/", "/a/file"])
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"embedded:///"):
        embedded_path(url)


@pytest.mark.parametrize("url", ["sqlite:///{name}.db", "sqlite:///{}.db", "sqlite:///{service.db"])
def test_only_the_service_can_stand_in_braces(url: str) -> None:
    with pytest.raises(ValueError, match="service"):
        sqlite_path(url, "payment")


def test_an_address_gives_its_file() -> None:
    settings = Settings(broker="embedded:////var/saga/broker.db", store="sqlite:///stores/{service}/all.db")
    assert embedded_path(settings.broker) == Path("/var/saga/broker.db")
    assert sqlite_path(settings.store, "payment") == Path("stores/payment/all.db")
    assert SQLITE.store_address(settings, "payment") == "sqlite:///stores/payment/all.db"


async def test_a_given_address_is_refused_as_settings_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'redis://here' cannot work\n  - there is no store 'redis'"):
        async with open_stores(["redis://here"], SystemClock()):
            pass


def test_the_variables_of_the_process_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_DRAIN_S", "3")
    assert Settings.from_environment().drain_s == 3


KAFKA = {"SAGA_BROKER": "kafka://broker-1,broker-2:9093"}
COUCHBASE = {"SAGA_STORE": "couchbase://db/shop/payment"}


def test_a_log_and_a_store_with_servers_can_be_set(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    settings = Settings.read(
        {
            **KAFKA,
            "SAGA_KAFKA_TLS": "yes",
            "SAGA_KAFKA_SASL": "SCRAM-SHA-512",
            "SAGA_KAFKA_USERNAME": "payment",
            "SAGA_KAFKA_PASSWORD_FILE": str(secret),
            "SAGA_STORE": "couchbases://db/shop",
            "SAGA_STORE_DURABILITY": "majorityandpersistactive",
            "SAGA_COUCHBASE_USERNAME": "payment",
            "SAGA_COUCHBASE_PASSWORD": "s3cret",
            "SAGA_HTTP": "127.0.0.1:0",
        }
    )
    mine = settings.of(KafkaOptions)
    assert kafka_servers(settings.broker) == ("broker-1:9092", "broker-2:9093")
    assert (mine.kafka_tls, mine.kafka_sasl) == (True, "scram-sha-512")
    assert settings.of(CouchbaseOptions).store_durability == "majorityAndPersistActive"
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**KAFKA, "SAGA_KAFKA_SASL": "plain"}, "needs SAGA_KAFKA_USERNAME and SAGA_KAFKA_PASSWORD_FILE"),
        ({**KAFKA, "SAGA_KAFKA_SASL": "oauthbearer"}, "needs SAGA_KAFKA_TOKEN=module:function"),
        ({**KAFKA, "SAGA_KAFKA_USERNAME": "me"}, "but not how to use it"),
        ({"SAGA_HOOK_SECRET_FILE": __file__}, "SAGA_HOOK_SECRET_FILE is given without SAGA_HOOK"),
        ({**KAFKA, "SAGA_KAFKA_CERT_FILE": __file__}, "SAGA_KAFKA_CERT_FILE and SAGA_KAFKA_KEY_FILE belong together"),
        ({**KAFKA, "SAGA_KAFKA_PASSWORD": "p", "SAGA_KAFKA_PASSWORD_FILE": __file__}, "are both given: keep one"),
        ({**KAFKA, "SAGA_KAFKA_CA_FILE": __file__}, "need SAGA_KAFKA_TLS=true"),
        ({**KAFKA, "SAGA_KAFKA_CA_FILE": "/nowhere"}, "there is no such file"),
        ({**KAFKA, "SAGA_KAFKA_MIN_INSYNC": "4"}, "nothing could be written"),
        ({**KAFKA, "SAGA_KAFKA_PASSWORD_FILE": "/nowhere"}, "SAGA_KAFKA_PASSWORD_FILE: there is no such file"),
        ({**KAFKA, "SAGA_KAFKA_TLS": "maybe"}, "it must be true or false"),
        ({**KAFKA, "SAGA_KAFKA_TOKEN": "tokens"}, "it must be module:function"),
        ({**KAFKA, "SAGA_KAFKA_SASL_EXTENSIONS": "a=1"}, "go with a token, and none is given"),
        ({**KAFKA, "SAGA_KAFKA_SASL_EXTENSIONS": "a=1,a=2"}, "names of letters, each once"),
        ({**KAFKA, "SAGA_KAFKA_SASL_EXTENSIONS": "auth=x"}, "none of them auth"),
        ({**KAFKA, "SAGA_KAFKA_SASL_EXTENSIONS": "a"}, "it must be name=value"),
        ({**KAFKA, "SAGA_KAFKA_KEY_PASSWORD_FILE": __file__}, "is given without SAGA_KAFKA_KEY_FILE: give both"),
        ({**KAFKA, "SAGA_KAFKA_INSTANCE": "payment/0"}, "it must be letters, digits, '.', '_' and '-', at most 200"),
        ({**KAFKA, "SAGA_KAFKA_INSTANCE": "p" * 201}, "at most 200, as in payment-0"),
        ({"SAGA_BROKER": "kafka://"}, "the servers are missing"),
        ({"SAGA_BROKER": "kafka://me:secret@broker"}, "have settings of their own"),
        (COUCHBASE, "couchbase needs SAGA_COUCHBASE_USERNAME and SAGA_COUCHBASE_PASSWORD_FILE"),
        ({**COUCHBASE, "SAGA_COUCHBASE_CA_FILE": __file__}, "certificates need TLS"),
        ({"SAGA_STORE": "couchbase://db"}, "the bucket is missing"),
        ({"SAGA_HTTP": "8080"}, "it must be host:port"),
    ],
)
def test_settings_that_servers_would_reject_are_reported(given: Mapping[str, str], message: str) -> None:
    assert any(message in problem for problem in problems(given))


def test_a_file_gives_settings_and_variables_and_flags_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "saga.toml"
    file.write_text('drain_s = 7\ncache_max = 5\nbroker = "kafka://from-file"\n')
    monkeypatch.setenv("SAGA_CONFIG", str(file))
    monkeypatch.setenv("SAGA_CACHE_MAX", "6")
    settings = Settings.from_environment(broker="kafka://from-flag")
    assert (settings.drain_s, settings.cache_max, settings.broker) == (7, 6, "kafka://from-flag")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drain_s = ", "Invalid value"),
        ("[kafka]\ntls = true", "kafka is no single value"),
        ("drain = 3", r"drain in .*saga\.toml is not a setting; did you mean SAGA_DRAIN_S"),
        ("drain_s = -3", r"drain_s in .*saga\.toml is '-3': it must be a number of seconds"),
        ('contracts = "here"', r"contracts in .*saga\.toml: give it as the variable SAGA_CONTRACTS"),
    ],
)
def test_a_file_that_cannot_work_is_reported(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "saga.toml"
    file.write_text(text)
    monkeypatch.setenv("SAGA_CONFIG", str(file))
    with pytest.raises(ConfigurationError, match=message):
        Settings.from_environment()


def test_a_missing_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_CONFIG", "/nowhere/saga.toml")
    with pytest.raises(ConfigurationError, match="/nowhere/saga"):
        Settings.from_environment()


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("couchbase:///shop", "hosts are missing"),
        ("couchbase://db", "bucket is missing"),
        ("couchbase://db/shop/", "bucket is missing"),
        ("couchbase://db/shop/scope/collection/more", "bucket is missing"),
        ("couchbase://db/shop?tls_verify=none", "options after"),
    ],
)
def test_an_address_that_cannot_work_is_reported(address: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        couchbase_place(address, "payment")


def test_the_id_of_a_process_reaches_the_broker() -> None:
    assert kafka_settings(Settings.read({**KAFKA, "SAGA_KAFKA_INSTANCE": "payment-0"})).instance == "payment-0"
    assert kafka_settings(Settings.read(KAFKA)).instance_for(["orders"]) is None


def test_the_default_of_what_is_in_flight_at_least_is_that_of_the_limit() -> None:
    assert Settings().inflight_min == INFLIGHT_MIN


def test_the_limits_of_a_worker_are_those_of_the_settings() -> None:
    given = {"inflight_max": 7, "inflight_min": 3, "inflight_bytes_max": 11, "cache_max": 13, "drain_s": 1.5}
    given["deaths_max"] = 5
    limits = limits_of(Settings.read({f"SAGA_{name.upper()}": str(value) for name, value in given.items()}))
    assert asdict(limits) == given


def test_the_size_of_records_is_bound_as_brokers_have_it() -> None:
    assert Settings().record_bytes_max == port.RECORD_BYTES_MAX
    bounds = str(port.RECORD_BYTES_LEAST), str(port.RECORD_BYTES_LIMIT)
    assert [Settings.read({"SAGA_RECORD_BYTES_MAX": b}).record_bytes_max for b in bounds] == [100_000, 1 << 24]
    for beyond in ("99999", str((1 << 24) + 1)):
        (problem,) = problems({"SAGA_RECORD_BYTES_MAX": beyond})
        assert problem.endswith("it must be a whole number of bytes from 100000 to 16777216")


def test_a_key_that_the_driver_cannot_open_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "client.key"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    given = {**COUCHBASE, "SAGA_COUCHBASE_CERT_FILE": str(key), "SAGA_COUCHBASE_KEY_FILE": str(key)}
    assert any("give it decrypted" in problem for problem in problems(given))
