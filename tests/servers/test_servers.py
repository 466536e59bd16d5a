"""The servers start once for all, and none of them outlives the run."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from saga.testing.servers.couchbase import CouchbaseMock
from saga.testing.servers.kafka import KafkaServer, kafka_answers, make_class_archive
from saga.testing.servers.server import Server, ServerFailed
from tests.servers.connections import count_connections, wait_until_left
from tests.waiting import until

ROOT = Path(__file__).parents[2]
USER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from tests.servers.shared_servers import shared_couchbase

    with shared_couchbase(Path(sys.argv[1])) as mock:
        print(mock.http, flush=True)
        sys.stdin.read()
""")
OWNER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from saga.testing.servers.couchbase import CouchbaseMock

    mock = CouchbaseMock.start(Path(sys.argv[1]))
    print(mock.http, mock.pid, flush=True)
    sys.stdin.read()
""")


def process(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def wait_until_gone(http: str) -> None:
    """Return once no server listens there; the test's own limit bounds it."""
    port = int(http.rpartition(":")[2])
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.recv(1)  # it ends with the server
        except OSError:
            return


def kill(*processes: subprocess.Popen[str]) -> None:
    for each in processes:
        each.kill()
        each.communicate()


@pytest.mark.timeout(60)
def test_all_share_one_server_which_ends_with_the_last_of_them(server_jars: Path, tmp_path: Path) -> None:
    first, second = (process(USER, tmp_path) for _ in range(2))
    try:
        http = line(first)
        assert http
        assert line(second) == http
        kill(first)
        third = process(USER, tmp_path)
        assert line(third) == http
        kill(second, third)
        wait_until_gone(http)
    finally:
        kill(first, second)


@pytest.mark.timeout(60)
def test_a_server_ends_with_the_process_that_started_it_however_that_ends(server_jars: Path, tmp_path: Path) -> None:
    owner = process(OWNER, tmp_path)
    http, pid = line(owner).split()
    os.kill(int(pid), signal.SIGSTOP)  # a frozen one, too
    kill(owner)
    wait_until_gone(http)


@pytest.mark.timeout(60)
def test_kafka_comes_back_on_its_port(server_jars: Path, tmp_path: Path) -> None:
    kafka = KafkaServer.start(tmp_path)
    try:
        assert kafka_answers(kafka.address)
        if (maps := Path(f"/proc/{kafka.pid}/maps")).exists() and make_class_archive().stat().st_size:
            assert make_class_archive().name in maps.read_text(), "its classes come from the archive"
        kafka.kill()
        assert not kafka_answers(kafka.address)
        kafka.restart()
        assert kafka_answers(kafka.address)
    finally:
        kafka.stop()


def test_the_mock_fails_on_request_and_lists_its_operations(server_jars: Path, tmp_path: Path) -> None:
    mock = CouchbaseMock.start(tmp_path)
    try:
        mock.opfail(count=0)
        mock.time_travel(1)
        mock.start_log()
        assert mock.operations() == []
        mock.failover()
        mock.respawn()
    finally:
        mock.stop()


def test_the_mock_has_a_connection_open_until_it_has_handled_what_came_by_it(server_jars: Path, tmp_path: Path) -> None:
    mock = CouchbaseMock.start(tmp_path)
    try:
        wait_until_left(mock, 10)
        with socket.create_connection(("127.0.0.1", int(mock.address.rpartition(":")[2]))):
            until(lambda: count_connections(mock) == 1, 10)  # the system accepts a connection before the mock does
            with pytest.raises(AssertionError, match="1 connection"):
                wait_until_left(mock, 0.1)
            mock.pause()
        assert count_connections(mock) == 1, "its client is gone, which it does not know yet"
        mock.resume()
        wait_until_left(mock, 10)
    finally:
        mock.stop()


ENDS = "touch ended; exit 1"
ENDS_AT_FIRST = "if [ -e ended ]; then touch up; exec sleep 60; fi; " + ENDS


def test_a_server_that_ends_before_it_answers_is_started_once_more(tmp_path: Path) -> None:
    server = Server("odd", ["sh", "-c", f"cd {tmp_path}; {ENDS_AT_FIRST}"], tmp_path, is_ready=(tmp_path / "up").exists)
    server.start()
    try:
        assert (tmp_path / "ended").exists()
    finally:
        server.kill()


def test_a_server_that_keeps_ending_fails_with_its_output(tmp_path: Path) -> None:
    script = f"cd {tmp_path}; echo twice >> {tmp_path}/odd.log; {ENDS}"
    with pytest.raises(ServerFailed, match=r"odd did not start: twice\ntwice\n$"):
        Server("odd", ["sh", "-c", script], tmp_path, is_ready=lambda: False).start()
