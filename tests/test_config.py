"""Settings are read as a whole: good ones become values, bad ones are all named at once."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from saga.config import READERS, Settings, embedded_path, sqlite_path
from saga.errors import ConfigurationError


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
        cache_max=0,
        drain_s=2.5,
        log="json",
        log_level="warning",
    )


def test_every_setting_has_a_variable() -> None:
    assert [f"SAGA_{field.name.upper()}" for field in fields(Settings)] == list(READERS)


def test_the_defaults_are_values_that_could_be_given() -> None:
    given = {f"SAGA_{field.name.upper()}": str(getattr(Settings(), field.name)) for field in fields(Settings)}
    assert Settings.read(given) == Settings()


def test_an_empty_variable_counts_as_absent() -> None:
    assert Settings.read({"SAGA_BROKER": "", "SAGA_LOG": " "}) == Settings()


def test_all_problems_are_told_at_once_with_what_would_be_right() -> None:
    assert problems(
        {
            "SAGA_BROKER": "redis://localhost",
            "SAGA_STORE": "sqlite://stores/x.db",
            "SAGA_INFLIGHT_MAX": "many",
            "SAGA_CACHE_MAX": "-1",
            "SAGA_DRAIN_S": "nan",
            "SAGA_LOG": "xml",
            "SAGA_LOG_LEVEL": "loud",
        }
    ) == (
        "SAGA_BROKER is 'redis://localhost': there is no broker 'redis'; use embedded:///file (relative) or "
        "embedded:////folder/file (absolute)",
        "SAGA_CACHE_MAX is '-1': it must be a whole number of documents from 0 to 10000000",
        "SAGA_DRAIN_S is 'nan': it must be a number of seconds from 0 to 3600",
        "SAGA_INFLIGHT_MAX is 'many': it must be a whole number of messages from 1 to 100000",
        "SAGA_LOG is 'xml': it must be one of: auto, json, text",
        "SAGA_LOG_LEVEL is 'loud': it must be one of: debug, info, warning, error",
        "SAGA_STORE is 'sqlite://stores/x.db': a file is meant, so three slashes follow the colon: "
        "sqlite:///stores/x.db",
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SAGA_BROCKER", "SAGA_BROCKER is not a setting; did you mean SAGA_BROKER?"),
        ("SAGA_LOGLEVEL", "SAGA_LOGLEVEL is not a setting; did you mean SAGA_LOG_LEVEL?"),
        ("SAGA_CONTRACT", "SAGA_CONTRACT is not a setting; did you mean SAGA_CONTRACTS?"),
    ],
)
def test_a_mistyped_name_is_a_problem_with_a_suggestion(name: str, told: str) -> None:
    assert problems({name: "x"}) == (told,)


def test_a_name_like_no_other_is_answered_with_all_there_are() -> None:
    (told,) = problems({"SAGA_ZOOKEEPER_URL": "x"})
    assert all(name in told for name in READERS)


def test_what_others_read_is_left_to_them() -> None:
    assert Settings.read({"SAGA_CONTRACTS": "elsewhere", "SAGA_TEST_SEED": "7", "OTHER": "x"}) == Settings()


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
    assert settings.broker_path == Settings.broker_path_of(settings.broker) == Path("/var/saga/broker.db")
    assert settings.store_path("payment") == Path("stores/payment/all.db")
    assert Settings.store_path_of(settings.store) == Path("stores/{service}/all.db")


@pytest.mark.parametrize("path_of", [Settings.broker_path_of, Settings.store_path_of])
def test_an_address_that_somebody_gave_is_refused_as_settings_are(path_of: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"'kafka://here' cannot work\n  - there is no (broker|store) 'kafka'"):
        path_of("kafka://here")


def test_the_variables_of_the_process_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_DRAIN_S", "3")
    assert Settings.from_environment().drain_s == 3
