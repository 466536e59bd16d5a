"""Settings of the schema registry: unusable ones are reported before anything starts, without secrets."""

import sys
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.registry.edge import create_registry
from saga.registry.port import RegistryOptions

URL = "https://registry:8081/apis/ccompat/v7"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"": "registry:8081"}, "it must be https://HOST:PORT/PATH or http://HOST:PORT/PATH"),
        ({"": "https://ada:secret-1@registry"}, "it must be an address alone; name the user and the password by"),
        ({"": URL, "_USER": "ada:secret-1"}, "there is a colon in it"),
        ({"": URL, "_PASSWORD": "secret-1"}, "is given without SAGA_REGISTRY_USER: give both"),
        (
            {"": "http://registry", "_USER": "ada", "_PASSWORD": "secret-1"},
            "where the password would be readable over the network",
        ),
        ({"_USER": "ada"}, "a setting of the schema registry is given without its address: SAGA_REGISTRY"),
        ({"": URL, "_CERT_FILE": __file__}, "SAGA_REGISTRY_CERT_FILE and SAGA_REGISTRY_KEY_FILE belong together"),
        ({"": URL, "_CA_FILE": "/nowhere"}, "there is no such file"),
    ],
)
def test_invalid_registry_settings_are_refused_without_showing_a_secret(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Settings.read({f"SAGA_REGISTRY{name}": text for name, text in given.items()})
    assert problem in str(raised.value)
    assert "secret-1" not in str(raised.value)


def test_an_address_with_a_path_and_a_user_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret-1")
    file = str(tmp_path / "password")
    environ = {"SAGA_REGISTRY": URL, "SAGA_REGISTRY_USER": "ada", "SAGA_REGISTRY_PASSWORD_FILE": file}
    options = Settings.read(environ).of(RegistryOptions)
    assert options == RegistryOptions(registry=URL, registry_user="ada", registry_password_file=file)


def test_a_registry_without_its_extra_installed_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "saga.registry.http", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert create_registry(RegistryOptions()) is None
    with pytest.raises(ConfigurationError, match=r"pip install 'saga-choreography\[registry\]'"):
        create_registry(RegistryOptions(registry=URL))
