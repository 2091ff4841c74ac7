"""Signatures with RSA keys, as servers that give tokens want them."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from noetl_core.errors import InvalidInput


def sign_rs256(private_key_pem: str, message: bytes) -> bytes:
    """RSASSA-PKCS1-v1_5 with SHA-256; nothing of the key is in what is raised."""
    try:
        key = load_pem_private_key(private_key_pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInput("the private key cannot be read: it is no PEM without a password") from None
    if not isinstance(key, RSAPrivateKey):
        raise InvalidInput("the private key is no RSA key")
    return key.sign(message, PKCS1v15(), SHA256())
