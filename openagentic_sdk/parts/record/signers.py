"""Sign the head of a record in several ways, and later verify the signatures.

installation   HMAC with this installation's key: proof for every holder of that key
ssh            `ssh-keygen -Y sign` with a person's key: proof for everyone who can attribute the key
witness        a command that stores the head elsewhere and answers with a token: proves what the token proves
timestamp      a token of a time stamping authority (RFC 3161): proves that the head existed at its time
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...errors import OptionsError, StorageError
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...ground.system import reason_of
from ...ground.text import on_one_line
from ...sessions.seal import Seal
from .commit import FORMAT

NAMESPACE = "record@openagentic-sdk"
PATIENCE_S = 60.0
MAX_TOKEN_BYTES = 1 << 16
_SSH_HEAD, _SSH_END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
# The fields of a TimeStampReq (RFC 3161 section 2.4.1, in DER) before the digest: version 1 and SHA-256.
_TSQ_HEAD = bytes.fromhex("020101 3031 300d 0609608648016503040201 0500 0420")
_GENERALIZED_TIME = regex(rb"\x18[\x0d-\x20](\d{14}(?:\.\d+)?Z)")


@frozen
class InstallationKey:
    """A signer with the key of this installation, or with the one at `path`."""

    path: str | None = None

    def sign(self, statement: bytes) -> Mapping[str, Any]:
        return {"by": "installation", "mac": Seal(self.path).digest(FORMAT, statement)}


@frozen
class SshKey:
    """A signer with a person's key: a private key file, or a public key file whose private key an ssh agent holds."""

    path: str

    def sign(self, statement: bytes) -> Mapping[str, Any]:
        if not Path(self.path).is_file():
            raise OptionsError(f"there is no ssh key {self.path}: give the file of a key that ssh-keygen can sign with")
        text = _run(["ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-f", self.path], statement).decode("ascii")
        key, _ = read_ssh_signature(text)
        return {"by": "ssh", "key": key, "fingerprint": ssh_fingerprint(key), "signature": text}


@frozen
class Witness:
    """A signer that is a command: it receives the statement on standard input and writes a token to standard output."""

    command: Sequence[str]
    name: str = "witness"

    def sign(self, statement: bytes) -> Mapping[str, Any]:
        token = _run(self.command, statement)
        if not token.strip() or len(token) > MAX_TOKEN_BYTES:
            raise StorageError(
                f"the witness {shlex.join(self.command)} returned no token, or one larger than {MAX_TOKEN_BYTES} bytes"
            )
        return {"by": "witness", "name": self.name, "token": b64encode(token).decode("ascii")}


@frozen
class Timestamp:
    """A signer that asks a time stamping authority, by a command that reads the request (DER) and writes the reply.

    For example `["curl", "-s", "-H", "Content-Type: application/timestamp-query", "--data-binary", "@-", URL]`.
    """

    command: Sequence[str]

    def sign(self, statement: bytes) -> Mapping[str, Any]:
        reply = _run(self.command, timestamp_query(sha256(statement).digest(), os.urandom(8)))
        time = timestamp_time(reply, statement)
        return {"by": "timestamp", "time": time, "token": b64encode(reply).decode("ascii")}


# --- checking --------------------------------------------------------------------------------------------------------


@frozen
class Voucher:
    """The signer of a statement, and the result of the check. `by` is the kind; `how` explains the rest.

    `proof` is `valid`, `invalid` or `unchecked`. A signature is `unchecked` if this machine lacks the key, the program, the
    witness's command or the authority's certificates, or if this version does not support its kind.
    """

    by: str
    name: str
    proof: str
    how: str


@frozen
class Trust:
    """The keys and authorities that a verifier trusts, and its check of witnesses; None or empty for those it lacks.

    They are the installation's key, ssh's allowed signers file, certificates of the time stamping authority (PEM), and the
    command that checks a witness's token (statement, newline and token on standard input).
    """

    seal: Seal | None = None
    allowed_signers: str | None = None
    timestamp_ca: str | None = None
    witness: Sequence[str] = ()


def check_signature(signature: Any, statement: bytes, trust: Trust) -> Voucher:
    """Check a signature of this statement; return its signer and the result, `invalid` if it cannot be read."""
    by = signature.get("by") if isinstance(signature, Mapping) else None
    check = _CHECKS.get(by) if isinstance(by, str) else None
    if check is None:
        return Voucher(
            on_one_line(str(by), 40), "", "unchecked", "this version does not support signatures of this kind"
        )
    try:
        return Voucher(str(by), *check(signature, statement, trust))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return Voucher(str(by), "", "invalid", f"it cannot be read: {on_one_line(str(error), 120)}")
    except StorageError as error:
        return Voucher(str(by), "", "unchecked", on_one_line(str(error), 200))


# The name, the proof and the `how` of a voucher.
_SignatureCheck = tuple[str, str, str]


def _check_installation(signature: Mapping[str, Any], statement: bytes, trust: Trust) -> _SignatureCheck:
    if trust.seal is None:
        return "an installation", "unchecked", "only a holder of its key can check it"
    try:
        is_ours = trust.seal.matches(str(signature["mac"]), FORMAT, statement)
    except OptionsError as error:
        return "an installation", "unchecked", str(error)
    if is_ours:
        return "this installation", "valid", "it was created with its key"
    return "", "invalid", "it was not created for this record with this installation's key"


def _check_ssh(signature: Mapping[str, Any], statement: bytes, trust: Trust) -> _SignatureCheck:
    text = str(signature["signature"])
    key, namespace = read_ssh_signature(text)
    fingerprint = ssh_fingerprint(key)
    if namespace != NAMESPACE:
        return fingerprint, "invalid", f"it was created for {on_one_line(namespace, 60)}, not for records"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "signature")
        path.write_text(text, encoding="ascii")
        signed = ["-n", NAMESPACE, "-s", str(path)]
        # This form checks the signature itself, without a list of who may sign.
        is_signed = ["ssh-keygen", "-Y", "check-novalidate", *signed]
        if trust.allowed_signers is None:
            if not _succeeds(is_signed, statement):
                return fingerprint, "invalid", "it is not a signature of this record"
            return fingerprint, "valid", "it was made with this key; --allowed-signers shows whose key it is"
        allowed = ["-f", trust.allowed_signers]
        principals = subprocess_result(["ssh-keygen", "-Y", "find-principals", *allowed, "-s", str(path)], b"")
        names = (
            principals.stdout.decode("utf-8", "replace").split("\n")[0].split(",") if principals.returncode == 0 else []
        )
        for name in filter(None, names):
            if _succeeds(["ssh-keygen", "-Y", "verify", "-I", name, *allowed, *signed], statement):
                return on_one_line(name, 100), "valid", f"{fingerprint} in {trust.allowed_signers}"
        if _succeeds(is_signed, statement):
            return fingerprint, "invalid", f"{trust.allowed_signers} does not allow this key"
    return fingerprint, "invalid", "it is not a signature of this record"


def _check_witness(signature: Mapping[str, Any], statement: bytes, trust: Trust) -> _SignatureCheck:
    name = on_one_line(str(signature.get("name")), 60)
    token = b64decode(signature["token"], validate=True)
    if not trust.witness:
        return name, "unchecked", "its token can be checked only with the witness's own command"
    is_good = _succeeds(list(trust.witness), statement + b"\n" + token)
    verdict = "accepts it" if is_good else "rejects it"
    return name, "valid" if is_good else "invalid", f"{shlex.join(trust.witness)} {verdict}"


def _check_timestamp(signature: Mapping[str, Any], statement: bytes, trust: Trust) -> _SignatureCheck:
    reply = b64decode(signature["token"], validate=True)
    time = timestamp_time(reply, statement)
    if trust.timestamp_ca is None:
        return time, "unchecked", "it matches; its authority can be checked with --timestamp-ca"
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder, "reply"), Path(folder, "data")
        path.write_bytes(reply)
        data.write_bytes(statement)
        command = ["openssl", "ts", "-verify", "-data", str(data), "-in", str(path), "-CAfile", trust.timestamp_ca]
        is_good = _succeeds(command, b"")
    how = (
        f"it was issued by an authority in {trust.timestamp_ca}"
        if is_good
        else (f"it was not issued by an authority in {trust.timestamp_ca}")
    )
    return time, "valid" if is_good else "invalid", how


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], bytes, Trust], _SignatureCheck]] = {
    "installation": _check_installation,
    "ssh": _check_ssh,
    "witness": _check_witness,
    "timestamp": _check_timestamp,
}


# --- forms -----------------------------------------------------------------------------------------------------------


def read_ssh_signature(text: str) -> tuple[str, str]:
    """The public key (in authorized_keys form) and the namespace of an armored signature (OpenSSH, PROTOCOL.sshsig).

    Raises `ValueError`.
    """
    head, _, rest = text.strip().partition("\n")
    body, _, end = rest.rpartition("\n")
    if head != _SSH_HEAD or end != _SSH_END:
        raise ValueError("it is not an ssh signature")
    data = b64decode("".join(body.split()), validate=True)
    if data[:10] != b"SSHSIG\0\0\0\1":
        raise ValueError("it is not an ssh signature of version 1")
    key, rest_ = _ssh_string(data[10:])
    kind, _ = _ssh_string(key)
    namespace, _ = _ssh_string(rest_)
    return f"{kind.decode('ascii')} {b64encode(key).decode('ascii')}", namespace.decode("utf-8")


def _ssh_string(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError("it is truncated")
    return data[4 : 4 + size], data[4 + size :]


def ssh_fingerprint(key: str) -> str:
    """The fingerprint of a key as ssh-keygen prints it."""
    digest = sha256(b64decode(key.split()[1])).digest()
    return f"SHA256:{b64encode(digest).decode('ascii').rstrip('=')}"


def timestamp_query(digest: bytes, nonce: bytes) -> bytes:
    """The request for a token over this SHA-256 digest, in DER. `nonce` has 8 bytes."""
    number = bytes([nonce[0] & 0x3F | 0x40]) + nonce[1:]  # positive, and in its shortest form
    body = _TSQ_HEAD + digest + b"\x02\x08" + number + b"\x01\x01\xff"
    return b"\x30" + bytes([len(body)]) + body


def timestamp_time(reply: bytes, statement: bytes) -> str:
    """The time in the reply, `YYYYMMDDhhmmssZ`. Raises `ValueError` if the reply is for other data or has no time."""
    place = reply.find(sha256(statement).digest())
    # In a token, the first time after the digest is the token's own; times of certificates come later (RFC 3161, TSTInfo).
    match = _GENERALIZED_TIME.search(reply, max(0, place))
    if place < 0 or match is None:
        raise ValueError("the time stamp is for other data")
    return match[1].decode("ascii")


def subprocess_result(command: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run a command with this input; return its exit code and output.

    Raises `StorageError` if it cannot be run or takes over a minute.
    """
    try:
        return subprocess.run(list(command), input=data, capture_output=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise StorageError(f"{command[0] if command else 'no command'} cannot be used: {reason_of(error)}") from error


def _succeeds(command: Sequence[str], data: bytes) -> bool:
    return subprocess_result(command, data).returncode == 0


def _run(command: Sequence[str], data: bytes) -> bytes:
    done = subprocess_result(command, data)
    if done.returncode:
        error = on_one_line(done.stderr.decode("utf-8", "replace"), 200)
        raise StorageError(f"{shlex.join(command)} failed with exit code {done.returncode}: {error}")
    return done.stdout
