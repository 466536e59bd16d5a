"""Certificates for servers and clients of tests, made by `openssl`, which comes with Java's packages."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

CONFIG = "[req]\ndistinguished_name=name\n[name]\n"
DAYS = "30"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key; both PEM."""

    cert_file: Path
    key_file: Path

    def together(self) -> Path:
        """Both in one file, as Kafka wants them."""
        path = self.cert_file.with_suffix(".both.pem")
        path.write_text(self.key_file.read_text() + self.cert_file.read_text())
        return path

    def encrypted(self, password: str) -> "Certificate":
        """The same certificate, with a key that opens with this password alone."""
        key_file = self.key_file.with_suffix(".encrypted.key")
        command = ["openssl", "pkcs8", "-topk8", "-in", str(self.key_file), "-out", str(key_file)]
        subprocess.run([*command, "-passout", f"pass:{password}"], check=True, capture_output=True)
        return Certificate(self.cert_file, key_file)


class Authority:
    """Signs certificates, and has one of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "openssl.cnf").write_text(CONFIG)
        self._own = self._made(name, ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"], [])

    @property
    def ca_file(self) -> Path:
        """For those who are to trust it."""
        return self._own.cert_file

    def issue(self, name: str) -> Certificate:
        """For a server of this machine, or for a client of that name."""
        signed_by = ["-CA", str(self._own.cert_file), "-CAkey", str(self._own.key_file)]
        return self._made(f"{self._name}-{name}", ["subjectAltName=IP:127.0.0.1"], signed_by, name)

    def _made(self, file: str, extensions: list[str], signed_by: list[str], name: str = "") -> Certificate:
        made = Certificate(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        command = ["openssl", "req", "-x509", *KEY, "-config", str(self._folder / "openssl.cnf"), "-days", DAYS]
        command += ["-subj", f"/CN={name or file}", "-keyout", str(made.key_file), "-out", str(made.cert_file)]
        for extension in extensions:
            command += ["-addext", extension]
        subprocess.run([*command, *signed_by], check=True, capture_output=True)
        return made
