"""A certificate authority of the tests' own."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """One that signs itself, and certificates for names."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Authority:
        """A new one; what it makes is kept in `folder`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Tests")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _dated(x509.CertificateBuilder()).issuer_name(name).subject_name(name).public_key(key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(key, builder.add_extension(usage, critical=True).sign(key, SHA256()), folder)

    def server(self, *names: str) -> ssl.SSLContext:
        """What a server for `names` speaks TLS with."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _dated(x509.CertificateBuilder()).issuer_name(self.certificate.subject).subject_name(_name(names[0]))
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.public_key(key.public_key()).add_extension(alternatives, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        file = self.folder / f"{names[0]}.pem"
        file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def client(self) -> ssl.SSLContext:
        """What trusts this authority and no other."""
        return ssl.create_default_context(cadata=self.certificate.public_bytes(Encoding.PEM).decode())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _dated(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
