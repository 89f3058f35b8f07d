"""The sources of AWS credentials, in the order of AWS's own tools, and when they are fetched again."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import unittest
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import skipUnless
from urllib.parse import parse_qs

from openagentic_sdk.errors import OptionsError, ProviderError
from openagentic_sdk.providers.clouds.aws import AwsCredentials
from openagentic_sdk.providers.clouds.aws_chain import REFRESH_BEFORE_S, CredentialChain
from openagentic_sdk.testing.clock import FakeClock

from .server import Connection, Request, Server

HAS_BOTOCORE = importlib.util.find_spec("botocore") is not None
LIFE_S = 3600


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Chain(unittest.IsolatedAsyncioTestCase):
    """A service that plays STS, the address of a container, and that of an instance."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.home = self.enterContext(tempfile.TemporaryDirectory())
        self.token = Path(self.home, "token")
        self.token.write_text("header.payload.signature")
        self.broken = False
        self.server = self.enterContext(Server(self.play))
        self.base = {"HOME": self.home, "AWS_EC2_METADATA_DISABLED": "true"}
        self.identity = {
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(self.token),
            "AWS_ROLE_SESSION_NAME": "night",
            "AWS_ENDPOINT_URL_STS": self.server.url,
        }
        self.container = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.server.url}/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self.token),
        }
        self.instance = {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.server.url}

    def play(self, connection: Connection, request: Request) -> None:
        ends = iso(self.clock.now() + LIFE_S)
        found = {"Code": "Success", "AccessKeyId": "K", "SecretAccessKey": "s", "Token": "t", "Expiration": ends}
        number = len(self.server.requests)
        if self.broken:
            connection.reply(b'{"code": "Broken", "message": "no"}', "500 No")
        elif request.path == "/":
            asked = {key: value[0] for key, value in parse_qs(request.body.decode()).items()}
            assert asked["WebIdentityToken"] == "header.payload.signature", asked
            assert asked["Action"] == "AssumeRoleWithWebIdentity" and asked["RoleSessionName"] == "night", asked
            connection.reply(
                f"<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
                f"<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>W{number}</AccessKeyId>"
                f"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{ends}</Expiration>"
                "</Credentials><AssumedRoleUser><Arn>a</Arn><AssumedRoleId>i</AssumedRoleId></AssumedRoleUser>"
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>".encode(),
                Content_Type="text/xml",
            )
        elif request.path == "/container":
            assert request.headers["authorization"] == "header.payload.signature", request.headers
            connection.reply(self.json({**found, "AccessKeyId": f"C{number}"}))
        elif request.path == "/latest/api/token":
            assert request.method == "PUT" and request.headers["x-aws-ec2-metadata-token-ttl-seconds"], request
            connection.reply(b"imds-token", Content_Type="text/plain")
        elif request.headers.get("x-aws-ec2-metadata-token") != "imds-token":
            connection.reply(b"", "401 Unauthorized")
        elif request.path.endswith("/security-credentials/"):
            connection.reply(b"my-role", Content_Type="text/plain")
        else:
            connection.reply(self.json({**found, "AccessKeyId": "I-my-role"}))

    def json(self, value: Any) -> bytes:
        import json

        return json.dumps(value).encode()

    def chain(self, *parts: dict[str, str], profile: str | None = None) -> CredentialChain:
        environ = {key: value for part in (self.base, *parts) for key, value in part.items()}
        return CredentialChain(profile, "us-east-1", environ=environ, clock=self.clock)

    async def key(self, *parts: dict[str, str], profile: str | None = None) -> str:
        return (await self.chain(*parts, profile=profile).credentials()).access_key

    async def test_each_source_comes_before_the_next(self) -> None:
        keys = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "e"}
        every = (keys, self.identity, self.container, self.instance)
        self.assertEqual(await self.key(*every), "E")
        self.assertEqual((await self.key(*every[1:]))[0], "W")
        self.assertEqual((await self.key(*every[2:]))[0], "C")
        self.assertEqual(await self.key(*every[3:]), "I-my-role")
        Path(self.home, ".aws").mkdir()
        Path(self.home, ".aws/credentials").write_text(
            "[default]\naws_access_key_id=D\naws_secret_access_key=d\n[p]\naws_access_key_id=P\naws_secret_access_key=p\n"
        )
        self.assertEqual(await self.key(*every[2:]), "D")
        self.assertEqual(await self.key(*every, profile="p"), "P")
        Path(self.home, ".aws/config").write_text(
            f"[profile w]\nrole_arn=arn:aws:iam::1:role/r\nweb_identity_token_file={self.token}\nrole_session_name=night\n"
        )
        sts = {"AWS_ENDPOINT_URL_STS": self.server.url}
        self.assertEqual((await self.key(sts, profile="w"))[0], "W")

    async def test_temporary_ones_are_fetched_again_before_they_expire_and_kept_while_that_fails(self) -> None:
        for part in (self.identity, self.container):
            chain = self.chain(part)
            first = await chain.credentials()
            self.assertEqual((first.session_token, first.expires_at), ("t", int(self.clock.now()) + LIFE_S))
            self.clock.advance(LIFE_S - REFRESH_BEFORE_S - 10)
            self.assertEqual(await chain.credentials(), first)
            self.clock.advance(20)
            self.broken = True
            self.assertEqual(await chain.credentials(), first)
            self.clock.advance(REFRESH_BEFORE_S)
            with self.assertRaisesRegex(ProviderError, "answered 500"):
                await chain.credentials()
            self.broken = False
            self.assertNotEqual((await chain.credentials()).access_key, first.access_key)

    async def test_unusable_credentials_are_refused_with_a_remedy(self) -> None:
        with self.assertRaisesRegex(OptionsError, "not a container or instance with a role"):
            await self.chain().credentials()
        self.broken = True
        with self.assertRaisesRegex(OptionsError, "not a container or instance with a role"):
            await self.chain(self.instance).credentials()
        for address in ("http://10.0.0.5/keys", "http://evil.example/", "ftp://localhost/", "http://[::1"):
            with self.assertRaisesRegex(
                OptionsError, "must be an https:// URL, or an http:// URL whose host is localhost"
            ):
                await self.chain({"AWS_CONTAINER_CREDENTIALS_FULL_URI": address}).credentials()
        self.token.write_text("two\nlines")
        for part in (self.identity, self.container):
            with self.assertRaisesRegex(OptionsError, "TOKEN_FILE names .* which contains no token"):
                await self.chain(part).credentials()
        self.token.unlink()
        with self.assertRaisesRegex(OptionsError, "AWS_WEB_IDENTITY_TOKEN_FILE names .* which cannot be read"):
            await self.chain(self.identity).credentials()

    def test_the_secret_parts_are_never_shown(self) -> None:
        self.assertNotIn("secret2", repr(AwsCredentials("A", "secret2", "secret2", 5.0)))

    @skipUnless(HAS_BOTOCORE, "botocore is not installed")
    async def test_botocore_finds_the_same(self) -> None:
        from botocore.session import Session

        def theirs(environ: dict[str, str]) -> tuple[str, str, str]:
            before = dict(os.environ)
            os.environ.clear()
            os.environ.update(environ)
            try:
                found = Session().get_credentials().get_frozen_credentials()
            finally:
                os.environ.clear()
                os.environ.update(before)
            return found.access_key[0], found.secret_key, found.token

        self.clock = FakeClock(now=datetime.now(UTC).timestamp())
        for part in (self.identity, self.container, self.instance):
            environ = {**self.base, **part, "AWS_DEFAULT_REGION": "us-east-1", "PATH": os.environ.get("PATH", "")}
            found = await self.chain(part).credentials()
            ours = (found.access_key[0], found.secret_key, found.session_token)
            self.assertEqual(ours, theirs(environ))


if __name__ == "__main__":
    unittest.main()
