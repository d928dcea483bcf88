"""The cluster's certificates: one authority that signs all others."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_EARLIER: Final = dt.timedelta(hours=1)
_LIFETIME: Final = dt.timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """The certificate authority of the cluster.

    Attributes:
        folder: The folder with its own and all signed certificates.
    """

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Create an authority and the key that signs service account tokens."""
        folder.mkdir(parents=True, mode=0o700)
        authority = cls(folder)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("ddp-trainer-test-cluster", ())
        builder = _builder(name, name, key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        usage = _usage(signs_certificates=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        _write(authority.pair, certificate, key)
        _write_key(authority.service_account_key, ec.generate_private_key(ec.SECP256R1()))
        return authority

    @property
    def pair(self) -> Pair:
        """The authority's own certificate and key."""
        return self.files("ca")

    @property
    def service_account_key(self) -> Path:
        """The key that signs service account tokens; its public half verifies them."""
        return self.folder / "service-account.key"

    def issue(
        self,
        file_name: str,
        user: str,
        groups: Sequence[str] = (),
        server_names: Sequence[str] = (),
    ) -> Pair:
        """Sign a new certificate for a client, and for a server if names are given.

        Args:
            file_name: The base name of the two files; an older pair is replaced.
            user: The common name, which the API server uses as the user.
            groups: The organizations, which the API server uses as the user's groups.
            server_names: DNS names and IP addresses of the server.
        """
        ca = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        ca_key = serialization.load_pem_private_key(self.pair.key.read_bytes(), password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError("the authority's key must be an elliptic curve key")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(user, groups), ca.subject, key.public_key())
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if server_names:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(name) for name in server_names])
            builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        pair = self.files(file_name)
        _write(pair, builder.sign(ca_key, hashes.SHA256()), key)
        return pair

    def files(self, name: str) -> Pair:
        """Return the file paths of the pair with this base name, which may not exist."""
        return Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")


def _name(user: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _LIFETIME)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(pair.key, key)


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    file.touch(mode=0o600)
    file.write_bytes(text)
