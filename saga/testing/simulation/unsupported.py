"""Abilities that a simulated event loop lacks: network, threads, processes, signals, settings. Each refuses and says
so."""

from asyncio import AbstractEventLoop
from typing import Any, NoReturn

from saga.errors import SagaError


def _refuses(what: str) -> Any:  # any signature: the method only raises
    def method(self: AbstractEventLoop, *_: object, **__: object) -> NoReturn:
        raise SagaError(what)

    return method


_NETWORK = _refuses("a simulated world has no network: make it a resource and give the world a fake")
_PROCESS = _refuses("a simulated world has no other programs: make it a resource and give the world a fake")
_THREAD = _refuses("a simulated world has no threads: make it a resource and give the world a fake")
_SIGNAL = _refuses("a simulated world gets no signals: its services are stopped by the world")
_SETTING = _refuses("the event loop of a simulated world is as it is: services do not set it up")
_ENDLESS = _refuses("a simulated world is run by its test: services neither run nor stop its event loop")


class WithoutSystem(AbstractEventLoop):
    """Methods that would ask the operating system for something: each raises `SagaError`."""

    add_reader = add_writer = remove_reader = remove_writer = _NETWORK
    create_connection = create_server = create_datagram_endpoint = create_unix_connection = _NETWORK
    create_unix_server = connect_accepted_socket = start_tls = getaddrinfo = getnameinfo = _NETWORK
    sock_accept = sock_connect = sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = _NETWORK
    sock_sendall = sock_sendfile = sock_sendto = sendfile = _NETWORK
    subprocess_exec = subprocess_shell = connect_read_pipe = connect_write_pipe = _PROCESS
    call_soon_threadsafe = set_default_executor = _THREAD
    add_signal_handler = remove_signal_handler = _SIGNAL
    get_exception_handler = set_exception_handler = get_task_factory = set_task_factory = _SETTING
    run_forever = stop = _ENDLESS
