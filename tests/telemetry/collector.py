"""A stand-in for a collector of OpenTelemetry: it takes spans over OTLP on HTTP, as real ones do."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """Spans that have arrived, each with the service that it is of."""

    address: str
    spans: list[tuple[str, Any]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    received: bytes = b""
    """All that has arrived, byte by byte."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens inside the block."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            request = ExportTraceServiceRequest.FromString(body)
            collector.paths.add(self.path)
            collector.received += body
            for each in request.resource_spans:
                names = {attribute.key: attribute.value.string_value for attribute in each.resource.attributes}
                collector.spans += [(names["service.name"], span) for scope in each.scope_spans for span in scope.spans]
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        server.daemon_threads = True
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
