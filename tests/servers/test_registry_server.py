"""The schema registry of the tests is a real one: it knows schemas again, and refuses those that do not fit."""

import urllib.error

import pytest

from tests.servers.registry import RegistryServer

ONE = {"type": "record", "name": "Known", "fields": [{"name": "id", "type": "string"}]}
OTHER = {"type": "record", "name": "Known", "fields": [{"name": "id", "type": "int"}]}


def test_a_schema_has_one_id_and_a_subject_refuses_what_does_not_fit(schema_registry: RegistryServer) -> None:
    id_ = schema_registry.register("servers-Known", ONE)
    assert schema_registry.register("servers-Known", ONE) == id_
    assert schema_registry.ask(f"/schemas/ids/{id_}")["schema"]
    assert schema_registry.is_compatible("servers-Known", ONE, "FULL_TRANSITIVE")
    assert not schema_registry.is_compatible("servers-Known", OTHER, "FULL_TRANSITIVE")
    with pytest.raises(urllib.error.HTTPError, match="409"):
        schema_registry.register("servers-Known", OTHER)
