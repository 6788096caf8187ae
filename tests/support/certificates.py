"""Certificate authority for the tests."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """Certificate authority with a self-signed certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    folder: Path

    @classmethod
    def create_in(cls, folder: Path) -> Authority:
        """Create an authority that writes its files to `folder`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Tests")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = (
            _set_validity(x509.CertificateBuilder()).issuer_name(name).subject_name(name).public_key(key.public_key())
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(key, builder.add_extension(usage, critical=True).sign(key, SHA256()), folder)

    def server(self, *names: str) -> ssl.SSLContext:
        """Return the TLS context of a server with a new certificate for `names`."""
        file = self.folder / f"{names[0]}.pem"
        file.write_bytes(b"".join(self._issue(*map(x509.DNSName, names))))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    @property
    def file(self) -> Path:
        """Path of the authority's certificate, in PEM format."""
        file = self.folder / "authority.pem"
        if not file.exists():
            file.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return file

    def issue(self, name: str, address: str = "") -> tuple[Path, Path]:
        """Issue a certificate for `name` and, if given, for an IP `address`. Return the paths of the key and the
        certificate."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        key, certificate = self._issue(x509.DNSName(name), *([x509.IPAddress(ip_address(address))] if address else []))
        private.write_bytes(key)
        public.write_bytes(certificate)
        return private, public

    def client(self) -> ssl.SSLContext:
        """Return a client's TLS context that trusts only this authority."""
        return ssl.create_default_context(cadata=self.certificate.public_bytes(Encoding.PEM).decode())

    def _issue(self, *names: x509.GeneralName) -> tuple[bytes, bytes]:
        """Return a new key and a certificate for `names`, in PEM format."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _set_validity(x509.CertificateBuilder()).issuer_name(self.certificate.subject)
        builder = builder.subject_name(_name(str(names[0].value))).public_key(key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = builder.add_extension(issuer, critical=False).sign(self.key, SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return private, certificate.public_bytes(Encoding.PEM)


def signer(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a key that signs Celery's messages and a self-signed certificate to `folder`. Return their paths."""
    key = rsa.generate_private_key(65537, 2048)
    builder = _set_validity(x509.CertificateBuilder()).issuer_name(_name(name)).subject_name(_name(name))
    private, public = folder / f"{name}.key", folder / f"{name}.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(builder.public_key(key.public_key()).sign(key, SHA256()).public_bytes(Encoding.PEM))
    return private, public


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _set_validity(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    current_time = datetime.now(UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(current_time - timedelta(days=1))
        .not_valid_after(current_time + timedelta(days=1))
    )
