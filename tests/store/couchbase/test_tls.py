"""Connections that are encrypted: whom the client trusts, and a certificate in the place of a password. See `node`."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from saga.errors import ConfigurationError, StoreUnavailable
from saga.store.couchbase import driver
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore
from tests.store.conftest import SettableClock
from tests.store.couchbase.node import Node, Op

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, `ca.pem` and `other.pem`, and what the first has signed: `server`, `client`."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "other"):
        openssl(folder, "req", "-x509", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(folder, "req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed)
    return folder


@pytest.fixture
async def node(certificates: Path) -> AsyncIterator[Node]:
    """It asks for the client's certificate, and accepts a client without one if the password is right."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    async with Node(tls=context).serving() as node:
        yield node


@pytest.fixture
def settings(node: Node, certificates: Path) -> CouchbaseSettings:
    return CouchbaseSettings(
        connection=f"couchbases://127.0.0.1:{node.port}",
        bucket="shop",
        username="payment",
        password=lambda: "secret",
        ca_file=certificates / "ca.pem",
    )


async def test_a_server_whose_authority_is_named_is_trusted(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        await store.insert("saga", "a", b"0")
        assert [key async for key, _ in store.scan("saga")] == ["a"]
    assert len(node.of_documents(Op.INSERT)) == 1


async def test_a_server_of_another_authority_is_not_trusted(
    node: Node,
    settings: CouchbaseSettings,
    clock: SettableClock,
    certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "BOOTSTRAP_S", 1.5)
    stranger = replace(settings, ca_file=certificates / "other.pem")
    with pytest.raises(StoreUnavailable, match="see also whether TLS is right"):
        await CouchbaseStore(stranger, clock=clock).__aenter__()
    assert not node.logins


async def test_a_certificate_stands_for_user_and_password(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, certificates: Path
) -> None:
    node.password = "nobody knows"
    known = replace(
        settings,
        username=None,
        password=None,
        cert_file=certificates / "client.pem",
        key_file=certificates / "client.key",
    )
    async with CouchbaseStore(known, clock=clock) as store:
        await store.insert("saga", "a", b"0")
        assert [key async for key, _ in store.scan("saga")] == ["a"]
    assert node.subjects == {"client"}
    assert not node.logins


async def test_a_bucket_that_evicts_is_refused(node: Node, settings: CouchbaseSettings, clock: SettableClock) -> None:
    node.eviction = "nruEviction"
    async with CouchbaseStore(settings, clock=clock) as store:
        with pytest.raises(ConfigurationError, match="ephemeral and evicts"):
            await store.check_expiry(["saga"], 86_400)


@pytest.mark.parametrize("eviction", ["noEviction", "valueOnly", "fullEviction", None])
async def test_a_bucket_that_keeps_what_it_has_is_taken(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, eviction: str | None
) -> None:
    node.eviction = eviction
    async with CouchbaseStore(settings, clock=clock) as store:
        await store.check_expiry(["saga"], 86_400)
    assert any(b"/pools/default/buckets/shop" in head for head in node.asked_of_management)
