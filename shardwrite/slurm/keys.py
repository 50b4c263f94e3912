"""TLS keys of a cluster, in files that only their user can read.

`distributed.Security.temporary` makes keys that are valid from this second on, and nodes whose
clocks are behind would refuse them. Its certificate can also sign others. So these keys are made
here.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwrite.host.libraries import library

_AUTHORITY, _CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"


def make_keys() -> dict[str, bytes]:
    """Make a certificate authority, and one signed key for all processes of a cluster.

    The files' contents are returned by file name. The private key of the authority is not kept, so
    it can sign nothing else.
    """
    library("cryptography", "slurm", field="TLS", value="cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shardwrite run")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shardwrite process")])
    now = dt.datetime.now(dt.UTC)

    def signed(name: x509.Name, public: Any, *, is_authority: bool) -> bytes:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        usage |= {
            "encipher_only": False,
            "decipher_only": False,
            "crl_sign": is_authority,
            "key_cert_sign": is_authority,
        }
        certificate = (
            x509.CertificateBuilder(issuer, name, public, x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))  # the clocks of nodes differ
            .not_valid_after(now + dt.timedelta(days=365))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=not is_authority, **usage), critical=True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()),
                critical=False,
            )
            .sign(root, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        _AUTHORITY: signed(issuer, root.public_key(), is_authority=True),
        _CERTIFICATE: signed(subject, own.public_key(), is_authority=False),
        KEY: private,
    }


def write_keys(keys: Mapping[str, bytes], directory: Path) -> None:
    """Write the files that `make_keys` returns into a directory."""
    for name, data in keys.items():
        write_private(directory / name, data)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, and that is whole as soon as it appears."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def security_of(directory: Path) -> Any:
    """TLS settings of the processes of a cluster, with the keys in a directory.

    Each process shows the certificate there, and refuses to talk to processes that do not.
    """
    from distributed.security import Security

    roles = ("scheduler", "worker", "client")
    certificates = {f"tls_{role}_cert": str(directory / _CERTIFICATE) for role in roles}
    keys = {f"tls_{role}_key": str(directory / KEY) for role in roles}
    return Security(
        require_encryption=True, tls_ca_file=str(directory / _AUTHORITY), **certificates, **keys
    )
