"""Fingerprint of a schema: what the header of a single object names it by."""

from functools import lru_cache

from fastavro.schema import fingerprint

_ALGORITHM = "CRC-64-AVRO"


@lru_cache(maxsize=4096)
def fingerprint_of(canonical: str) -> bytes:
    """Fingerprint of a schema in its parsing canonical form, as bytes in the order of the header.

    Each text is computed once: fastavro goes over it byte by byte in Python, which takes three quarters of the reading
    of a folder of contracts, and a worker that waits for a schema reads the folder again and again.
    """
    return bytes.fromhex(fingerprint(canonical, _ALGORITHM))
