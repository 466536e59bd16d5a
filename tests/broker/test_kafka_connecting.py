"""Connections to Kafka: which credentials are accepted, and the error of refused ones, within 15 s and with a
remedy."""

import asyncio
import base64
import json
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka.conn import OAuthAuthenticator
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError

from saga.broker.kafka import broker, client
from saga.broker.kafka.access import KafkaAccess
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import LET_GO_S_MAX, KafkaMember
from saga.broker.port import Membership, Subscription
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError, SagaError
from saga.messages import Topic
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from saga.testing.servers.kafka import KafkaServer
from saga.testing.servers.server import free_ports
from tests.broker.retrying import put
from tests.broker.waiting import until

CLOCK = SystemClock()
USER, PASSWORD = "saga", "open sesame"
EXTRA = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PLAIN://127.0.0.1:%(plain)d,\
SCRAM://127.0.0.1:%(scram)d,TOKEN://127.0.0.1:%(token)d,TLS://127.0.0.1:%(tls)d
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PLAIN://127.0.0.1:%(plain)d,SCRAM://127.0.0.1:%(scram)d,\
TOKEN://127.0.0.1:%(token)d,TLS://127.0.0.1:%(tls)d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAIN:SASL_PLAINTEXT,SCRAM:SASL_PLAINTEXT,\
TOKEN:SASL_PLAINTEXT,TLS:SSL
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_%(user)s="%(password)s";
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.scram.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.scram.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.token.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.token.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";
auto.create.topics.enable=true
ssl.keystore.type=PKCS12
ssl.keystore.location=%(keystore)s
ssl.keystore.password=%(password)s
"""


@dataclass(frozen=True)
class Secured:
    """A broker with a port of each kind."""

    kafka: KafkaServer
    plain: int
    scram: int
    token: int
    tls: int
    ca_file: Path


@pytest.fixture(scope="module")
def secured(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("kafka")
    keystore, ca_file = folder / "keys.p12", folder / "ca.pem"
    key = ["keytool", "-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", "kafka"]
    made = [*key, "-genkeypair", "-keyalg", "EC", "-dname", "CN=kafka", "-validity", "30"]
    subprocess.run([*made, "-ext", "SAN=ip:127.0.0.1", "-ext", "bc=ca:true"], check=True, capture_output=True)
    subprocess.run([*key, "-exportcert", "-rfc", "-file", str(ca_file)], check=True, capture_output=True)
    plain, scram, token, tls = free_ports(4)
    names = {"plain": plain, "scram": scram, "token": token, "tls": tls}
    extra = EXTRA % {**names, "keystore": keystore, "user": USER, "password": PASSWORD}
    kafka = KafkaServer.start(folder, extra=extra, users={USER: PASSWORD})
    yield Secured(kafka, **names, ca_file=ca_file)
    kafka.stop()


def at(port: int, **settings: object) -> KafkaSettings:
    known = KafkaSettings(servers=(f"127.0.0.1:{port}",), replication_factor=1, min_insync_replicas=1, connect_s=4)
    return replace(known, **settings)  # type: ignore[arg-type]  # the names are those of its fields


def a_token() -> str:
    """One without a signature: the test's broker accepts them."""
    now_s = CLOCK.now_ms() // 1000
    parts = ({"alg": "none"}, {"sub": USER, "iat": now_s, "exp": now_s + 600})
    return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."


async def everything_works(settings: KafkaSettings, topic: str) -> None:
    """Publish, join, read, commit, scan: each makes connections of its own."""
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "v")])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            while not (records := await membership.poll(list(listening.has), records_max=1, timeout_s=0.05)):
                pass
            await membership.commit(dict.fromkeys(listening.has, records[0].offset + 1))
        assert values([record async for record in broker.scan(topic)])[-1] == "v"


async def refusal(settings: KafkaSettings) -> SagaError:
    """Error that is raised, soon, instead of letting us in."""
    began_s = CLOCK.monotonic_s()
    with pytest.raises(SagaError) as refused:
        async with KafkaBroker(settings, clock=CLOCK):
            pass
    assert CLOCK.monotonic_s() - began_s < settings.connect_s + 15
    assert "\n" not in str(refused.value) or isinstance(refused.value, ConfigurationError)
    return refused.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "TLS"])
async def test_a_client_with_valid_credentials_is_accepted(secured: Secured, mechanism: str) -> None:
    settings = {
        "PLAIN": at(secured.plain, sasl="PLAIN", username=USER, password=lambda: PASSWORD),
        "SCRAM-SHA-256": at(secured.scram, sasl="SCRAM-SHA-256", username=USER, password=lambda: PASSWORD),
        "SCRAM-SHA-512": at(secured.scram, sasl="SCRAM-SHA-512", username=USER, password=lambda: PASSWORD),
        "OAUTHBEARER": at(secured.token, sasl="OAUTHBEARER", token=a_token),
        "TLS": at(secured.tls, tls=True, ca_file=secured.ca_file),
    }[mechanism]
    await everything_works(settings, mechanism.lower())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_is_called_so(secured: Secured, mechanism: str) -> None:
    port = secured.plain if mechanism == "PLAIN" else secured.scram
    why = await refusal(at(port, sasl=mechanism, username=USER, password=lambda: "wrong"))
    assert not isinstance(why, BrokerUnavailable)
    assert "check user and password" in str(why)
    assert "wrong" not in str(why)


async def test_another_mechanism_is_called_so(secured: Secured) -> None:
    why = await refusal(at(secured.scram, sasl="PLAIN", username=USER, password=lambda: PASSWORD))
    assert "configure the SASL mechanism" in str(why)


async def test_a_token_that_is_no_good_is_called_so(secured: Secured) -> None:
    why = await refusal(at(secured.token, sasl="OAUTHBEARER", token=lambda: "no.token.at-all"))
    assert f"127.0.0.1:{secured.token}" in str(why)
    assert "whether the token is good" in str(why)


class Trouble(Exception):
    """Nothing that anybody expects."""


@pytest.mark.parametrize(
    ("secret", "raises"),
    [
        ("password", Trouble("the vault is sealed")),
        ("token", StopIteration("the vault is sealed")),
        ("token", None),
    ],
)
async def test_a_secret_that_cannot_be_had_is_an_outage_that_is_reported_and_retried(
    secured: Secured, secret: str, raises: Exception | None
) -> None:
    """`None`: the function gives what is no text."""
    sealed = True

    def given() -> str:
        if sealed and raises is None:
            return None  # type: ignore[return-value]  # as functions do that were forgotten
        if sealed and raises is not None:
            raise raises
        return PASSWORD if secret == "password" else a_token()

    topic = f"sealed.{secret}.{type(raises).__name__}"
    soon = {"session_s": 2.0, "heartbeat_s": 0.2, "rebalance_s": 6.0, "publish_s": 2.0}
    settings = at(secured.plain, sasl="PLAIN", username=USER, password=given, **soon)
    if secret == "token":
        settings = at(secured.token, sasl="OAUTHBEARER", token=given, **soon)
    says = "the vault is sealed" if raises is not None else "it gave NoneType, and no str"
    why = await refusal(settings)
    assert isinstance(why, BrokerUnavailable)
    assert f"the {secret} for Kafka cannot be had" in str(why)
    assert says in str(why)
    sealed = False
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            while not await membership.poll(list(listening.has), records_max=9, timeout_s=0.05):
                pass
            sealed = True
            await asyncio.to_thread(secured.kafka.kill)  # who was in has to show himself again
            await asyncio.to_thread(secured.kafka.restart)
            assert isinstance(membership, KafkaMember)
            assert membership._consumer is not None
            membership._consumer._fetcher._fetch_task.cancel()  # and needs another client
            broker._open[0].producer._sender._sender_task.cancel()
            await CLOCK.within(30, wait_for_error(lambda: unread(membership), says))
            await CLOCK.within(30, wait_for_error(lambda: unpublished(broker, topic), says))
            with pytest.raises(BrokerUnavailable, match=says):
                assert [record async for record in broker.scan(topic)] == []
            sealed = False
            await CLOCK.within(20, put(broker, topic, "k", "after"))
            found: list[str] = []
            while found[-1:] != ["after"]:
                try:
                    found += values(await membership.poll(list(listening.has), records_max=9, timeout_s=0.1))
                except BrokerUnavailable:
                    await CLOCK.sleep(0.05)


async def test_a_password_that_is_another_one_by_now_is_called_so_while_running(secured: Secured) -> None:
    given = PASSWORD
    soon = {"session_s": 2.0, "heartbeat_s": 0.2, "rebalance_s": 6.0, "publish_s": 2.0, "commit_s": 2.0}
    settings = at(secured.plain, sasl="PLAIN", username=USER, password=lambda: given, **soon)
    says = "check user and password, and that the brokers have this user"
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("renewed", 1)])
        async with broker.join(Subscription("renewed", ["renewed"]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            given = "alakazam"
            await asyncio.to_thread(secured.kafka.kill)  # who was in has to show himself again
            assert isinstance(membership, KafkaMember)
            client = membership._consumer._client if membership._consumer is not None else None
            await until(lambda: client is not None and client._sasl_plain_password == given)
            await CLOCK.within(30, wait_for_error(lambda: unread(membership), "Connect call failed"))
            await asyncio.to_thread(secured.kafka.restart)
            await CLOCK.within(30, wait_for_error(lambda: unread(membership), says))
            assert "see whether" not in await unread(membership)
            await CLOCK.within(30, wait_for_error(lambda: unpublished(broker, "renewed"), says))
            with pytest.raises(BrokerUnavailable, match=says):
                await broker.count_partitions(["renewed"])
            given = PASSWORD
            await CLOCK.within(30, put(broker, "renewed", "k", "after"))
            while await unread(membership) != "nothing stands in the way":
                await CLOCK.sleep(0.05)


@pytest.mark.parametrize("secret", ["password", "token"])
async def test_a_secrets_function_that_would_end_the_process_does_not(secret: str) -> None:
    """A function that was written for a command may end it so."""

    def given() -> str:
        raise SystemExit("no login: run the tool again")

    settings = KafkaSettings(servers=("127.0.0.1:1",), sasl="PLAIN", username=USER, password=given)
    if secret == "token":
        settings = KafkaSettings(servers=("127.0.0.1:1",), sasl="OAUTHBEARER", token=given)
    access = KafkaAccess(settings)

    async def asked() -> None:
        provider = access.options["sasl_oauth_token_provider"]
        assert provider is not None
        await provider.token()

    with pytest.raises(KafkaConnectionError, match=f"the {secret} for Kafka cannot be had: .*SystemExit: no login"):
        await asked()


async def wait_for_error(trial: Callable[[], Awaitable[str]], says: str) -> None:
    while says not in await trial():
        await CLOCK.sleep(0.05)


async def unread(membership: Membership) -> str:
    try:
        await membership.poll([], records_max=9, timeout_s=0.05)
    except BrokerUnavailable as why:
        return str(why)
    return "nothing stands in the way"


async def unpublished(broker: KafkaBroker, topic: str) -> str:
    try:
        await broker.publish([event(topic, "k", "during")])
    except BrokerUnavailable as why:
        return str(why)
    return "it was published"


@pytest.mark.parametrize("name", ["_sender", "client._conns"])
async def test_an_aiokafka_that_has_become_another_one_is_an_error_at_the_start(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(client, "PRODUCER", (*client.PRODUCER, f"{name}.not_there_any_more"))
    why = await refusal(at(secured.kafka.port))
    assert not isinstance(why, BrokerUnavailable)
    assert f"AIOKafkaProducer.{name}.not_there_any_more" in str(why)
    assert "pip install" in str(why)


async def test_a_fetcher_that_has_become_another_one_is_an_error_when_a_group_is_joined(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KafkaBroker(at(secured.kafka.port), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("another", 1)])
        monkeypatch.setattr(client, "TAKES", ((Fetcher._proc_fetch_request, ("self", "request")),))
        with pytest.raises(BrokerError, match=r"Fetcher._proc_fetch_request\(self, request\)") as why:
            async with broker.join(Subscription("another", ["another"]), RecordingListener()):
                pass
        assert not isinstance(why.value, BrokerUnavailable)


async def test_an_untrusted_certificate_is_named_as_such(secured: Secured) -> None:
    why = await refusal(at(secured.tls, tls=True))
    assert not isinstance(why, BrokerUnavailable)
    assert "ca_file" in str(why)


async def test_tls_where_there_is_none_and_none_where_there_is_are_reported(secured: Secured) -> None:
    assert "TLS" in str(await refusal(at(secured.kafka.port, tls=True)))
    assert "TLS" in str(await refusal(at(secured.tls)))


async def test_a_password_where_none_is_wanted_is_reported(secured: Secured) -> None:
    why = await refusal(at(secured.kafka.port, sasl="PLAIN", username=USER, password=lambda: PASSWORD))
    assert f"127.0.0.1:{secured.kafka.port}" in str(why)
    assert "SASL" in str(why) or "mechanism" in str(why)


async def test_no_broker_there_is_called_so() -> None:
    (port,) = free_ports(1)
    why = await refusal(at(port))
    assert isinstance(why, BrokerUnavailable)
    assert f"127.0.0.1:{port}" in str(why)
    assert "that it runs" in str(why)


async def test_a_port_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        why = await refusal(at(silent.getsockname()[1]))
    assert isinstance(why, BrokerUnavailable)
    assert "no answer" in str(why)


class Knows:
    """Connection to a server that knows of no broker, so many times, and then of one."""

    def __init__(self, times: int) -> None:
        self.left, self.closed = times, False

    async def send(self, _request: object) -> SimpleNamespace:
        self.left -= 1
        return SimpleNamespace(brokers=[] if self.left >= 0 else ["1"])

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("times", "reason"), [(2, None), (10_000, "it knows of no broker that is up")])
async def test_a_server_that_knows_of_no_broker_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, times: int, reason: str | None
) -> None:
    connection = Knows(times)

    async def connected(*_: object, **__: object) -> Knows:
        return connection

    monkeypatch.setattr(broker, "create_conn", connected)
    settings = replace(at(1), connect_s=1)
    access = KafkaAccess(settings)
    if reason is None:
        await broker.check_connection(settings, access, CLOCK)
        assert connection.left == -1, "it was asked until it knew of one"
    else:
        with pytest.raises(BrokerUnavailable, match=reason):
            await broker.check_connection(settings, access, CLOCK)
    assert connection.closed


async def test_a_server_that_is_away_is_no_trouble_while_another_is_there(secured: Secured) -> None:
    (port,) = free_ports(1)
    await everything_works(at(port, servers=(f"127.0.0.1:{port}", f"127.0.0.1:{secured.kafka.port}")), "one-is-enough")


async def test_no_topic_is_ever_made_by_asking_for_it(secured: Secured) -> None:
    """This broker would: with one partition, and to be kept for a week."""
    async with KafkaBroker(at(secured.kafka.port), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("there", 1)])
        for _ in range(2):
            with pytest.raises(BrokerError, match="no topic 'missing'"):
                await broker.publish([event("there", "k", "v"), event("missing", "k", "v")])
            with pytest.raises(BrokerError, match="no topic 'missing'"):
                async with broker.join(Subscription("g", ["there", "missing"]), RecordingListener()):
                    pass
            with pytest.raises(BrokerError, match="no topic 'missing'"):
                assert [record async for record in broker.scan("missing")] == []
        await broker.ensure_topics([Topic("missing", 3)])
        await broker.publish([event("missing", "k", "v")])


@pytest.mark.slow
async def test_a_new_password_is_used_without_a_restart(secured: Secured) -> None:
    class Hasty(SystemClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(min(seconds, 0.1))

    passwords = [PASSWORD]
    settings = at(secured.plain, sasl="PLAIN", username=USER, password=lambda: passwords[-1])
    properties = secured.kafka.properties.read_text()
    try:
        async with KafkaBroker(settings, clock=Hasty()) as broker:
            await broker.ensure_topics([Topic("rotated", 1)])
            await broker.publish([event("rotated", "k", "before")])
            async with broker.join(
                Subscription("rotated", ["rotated"]), listening := RecordingListener()
            ) as membership:
                await asyncio.to_thread(secured.kafka.kill)
                user = f'user_{USER}="'
                secured.kafka.properties.write_text(properties.replace(f"{user}{PASSWORD}", f"{user}another one"))
                passwords.append("another one")
                await asyncio.to_thread(secured.kafka.restart)
                await broker.publish([event("rotated", "k", "after")])
                found: list[str] = []
                while found[-1:] != ["after"]:
                    try:
                        got = await membership.poll(list(listening.has), records_max=9, timeout_s=0.1)
                    except BrokerUnavailable:
                        await CLOCK.sleep(0.1)
                        continue
                    found += values(got)
    finally:
        secured.kafka.kill()
        secured.kafka.properties.write_text(properties)
        secured.kafka.restart()


def test_a_member_has_time_to_let_go_of_what_it_has() -> None:
    settings = KafkaSettings(servers=("kafka:9092",))
    assert settings.heartbeat_s * 3 < settings.session_s
    assert LET_GO_S_MAX + 4 * settings.heartbeat_s < settings.rebalance_s / 2


async def test_extensions_go_with_the_token(secured: Secured) -> None:
    extensions = {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    settings = at(secured.token, sasl="OAUTHBEARER", token=lambda: "a.b.c", extensions=extensions)
    shown, _ = await OAuthAuthenticator(sasl_oauth_token_provider=KafkaAccess(settings)).step(None)
    assert shown == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01"
    await everything_works(replace(settings, token=a_token), "extensions")


async def test_a_certificate_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    why = await refusal(at(1, tls=True, ca_file=tmp_path / "ca.pem"))
    assert isinstance(why, ConfigurationError)
    assert "ca.pem" in str(why)
