"""The key of this installation, and digests that only its holders can compute.

Contents of a store may come from anywhere: an archive, a backup, another machine. Whatever has a digest made with this key
was written here, or by a host that was given the same key. The key is a file outside every store, readable only by its
owner: the one named by OPENAGENTIC_SDK_KEY, otherwise `installation.key` in the SDK's home folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..errors import OptionsError
from ..ground.system import BINARY, NO_FOLLOW, user_home

HOME_NAME = "OPENAGENTIC_SDK_HOME"
KEY_FILE_NAME = "OPENAGENTIC_SDK_KEY"
KEY_NAME = "installation.key"
MIN_KEY_BYTES = 32
_BLOCK_BYTES = 64  # of SHA-256
# Translation tables that combine each byte of a key with HMAC's inner and outer pad (RFC 2104, section 2).
_INNER, _OUTER = (bytes(map(pad.__xor__, range(256))) for pad in (0x36, 0x5C))


@runtime_checkable
class Signer(Protocol):
    """A signer of the record of a session, see `parts.record.signers`."""

    def sign(self, statement: bytes) -> Mapping[str, Any]:
        """Return a JSON object `{"by", ...}`.

        Raises `OptionsError` if the signer is not usable, `StorageError` if it fails.
        """


def key_path() -> Path:
    """The path of the key. Raises `OptionsError` if no file is named and there is no home folder."""
    path = os.environ.get(KEY_FILE_NAME)
    return Path(path) if path else sdk_home() / KEY_NAME


def data_home() -> Path | None:
    """The folder for data that outlives a run; None if this user has none."""
    path = os.environ.get(HOME_NAME)
    if path:
        return Path(os.path.expanduser(path))
    home = user_home()
    return None if home == os.devnull else Path(home, ".openagentic-sdk")


def sdk_home() -> Path:
    """Like `data_home`. Raises `OptionsError` if this user has none."""
    home = data_home()
    if home is None:
        raise OptionsError(
            f"this user has no home folder (HOME is not set, or is another user's): set {HOME_NAME} to a folder for "
            "sessions, keys and trust, or store nothing with --store memory:"
        )
    return home


def read_key(path: Path, *, create: bool = False) -> bytes | None:
    """Read the key; create a missing one if `create`, otherwise return None.

    Raises `OptionsError` for a file that cannot be read or created, that others can read or write, or that is too short.
    """
    # Through no link: whoever can place one could choose the key.
    how = os.O_RDONLY | BINARY | NO_FOLLOW
    try:
        try:
            fd = os.open(path, how)
        except FileNotFoundError:
            if not create:
                return None
            _create_key(path)
            fd = os.open(path, how)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or (os.name == "posix" and info.st_mode & 0o077):
                raise OptionsError(f"the key {path} must be a regular file that only its owner can read (chmod 600)")
            key = os.read(fd, 4096).strip()
        finally:
            os.close(fd)
    except OSError as error:
        raise OptionsError(f"the key {path} cannot be used: {error.strerror or error}") from error
    if len(key) < MIN_KEY_BYTES:
        raise OptionsError(f"the key {path} cannot be used: it needs at least {MIN_KEY_BYTES} bytes, not {len(key)}")
    return key


def _create_key(path: Path) -> None:
    """Create the key; two processes that do so at once end up with the same one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY | NO_FOLLOW, 0o600)
    try:
        os.write(fd, os.urandom(32).hex().encode("ascii") + b"\n")
        os.fsync(fd)
        # A link never replaces: of two processes, the one that comes second uses the key of the first.
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        os.close(fd)
        os.unlink(unfinished)


class Seal:
    """The digests under one key, which is read from `path` (None: the installation's own) on first use."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._keyed: tuple[Any, Any] | None = None

    def digest(self, *parts: bytes) -> str:
        """The digest of the parts, unambiguously separated. A missing key is created. Raises `OptionsError`."""
        mac = self._made(parts, create=True)
        assert mac is not None
        return mac

    def matches(self, digest: str, *parts: bytes) -> bool:
        """Whether the digest is that of these parts under this key; False if there is no key. Raises `OptionsError`."""
        mac = self._made(parts, create=False)
        if mac is None:
            return False
        return compare_digest(mac.encode(), digest.encode("utf-8", "surrogatepass"))

    def _made(self, parts: tuple[bytes, ...], *, create: bool) -> str | None:
        if self._keyed is None:
            key = read_key(self._path or key_path(), create=create)
            if key is None:
                return None
            self._keyed = _keyed(key)
        # HMAC (RFC 2104), from copies of the keyed hash states: a run computes two digests per step, and for each,
        # hmac.digest() lets OpenSSL look up the hash again, which costs more than the rest of storing an event.
        inner, outer = self._keyed[0].copy(), self._keyed[1].copy()
        inner.update(b"".join([b"%d:%b" % (len(part), part) for part in parts]))
        outer.update(inner.digest())
        return str(outer.hexdigest())


def _keyed(key: bytes) -> tuple[Any, Any]:
    """The inner and outer hash of HMAC-SHA256, initialized with the key."""
    block = (sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return sha256(block.translate(_INNER)), sha256(block.translate(_OUTER))
