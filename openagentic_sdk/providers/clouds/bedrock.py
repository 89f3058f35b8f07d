"""Claude on Amazon Bedrock: the Messages API at another address, signed, with AWS's own stream framing."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from ...errors import OptionsError
from ...ground.patterns import regex
from ..anthropic import AnthropicProvider
from ..base import Message, ToolSpec
from ..chat_request import ToolNames, encode_request
from ..endpoint import EndpointProvider
from ..keys import call
from ..wire.exchange import BodyReader
from ..wire.reading import Reading
from .aws import AwsCredentials, read_region, sign
from .aws_chain import CredentialChain
from .event_stream import EventStreamReader

SERVICE = "bedrock"
_REGION = regex(r"[a-z]{2,4}(-[a-z]+)+-\d")


class HostedClaudeProvider(AnthropicProvider):
    """A provider for Claude served by a cloud: the model is in the address, the API version and betas are in the body."""

    usual_url = ""
    url_variable = None
    needs_key = False
    hosted_version: ClassVar[str]
    # Request fields that are already in the address.
    in_address: ClassVar[tuple[str, ...]] = ("model",)

    def authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def fixed_headers(self) -> dict[str, str]:
        return {}

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        payload, reading, names = super().prepare(model, messages, tools, stream=stream)
        headers = self._headers if isinstance(self._headers, Mapping) else {}
        betas = self.betas(headers)
        hosted = {
            "anthropic_version": self.hosted_version,
            **({"anthropic_beta": betas} if betas else {}),
            **{key: value for key, value in payload.items() if key not in self.in_address},
        }
        return hosted, reading, names


class BedrockEndpoint(EndpointProvider):
    """A provider in one region of Amazon Bedrock; a model is named by its id, an inference profile or an ARN.

    `region` defaults to AWS_REGION, AWS_DEFAULT_REGION or the profile's region. Requests are signed with `credentials` (if
    it is a function, it is called for each request), else with the credentials that AWS's own tools would find: from the
    environment, a web identity, `profile`, the container or the instance, renewed before they expire. A Bedrock API key, in
    `api_key` or AWS_BEARER_TOKEN_BEDROCK, replaces the signature. Raises `OptionsError` for a missing or invalid region.
    """

    key_variable: str | None = "AWS_BEARER_TOKEN_BEDROCK"

    def __init__(
        self,
        *,
        region: str | None = None,
        profile: str | None = None,
        credentials: AwsCredentials | Callable[[], AwsCredentials] | None = None,
        base_url: str | None = None,
        **endpoint: Any,
    ) -> None:
        region_name = region or read_region(profile)
        if not region_name or not _REGION.fullmatch(region_name):
            raise OptionsError(
                f"region {region_name!r:.100} is not an AWS region: pass region= (for example us-east-1) or set AWS_REGION"
            )
        # Anyone can have a host below amazonaws.com, so the environment's key is sent to Bedrock's hosts only.
        self.hosts = (f"bedrock-runtime.{region_name}.amazonaws.com", f"bedrock.{region_name}.amazonaws.com")
        super().__init__(base_url=base_url or f"https://{self.hosts[0]}", **endpoint)
        self.region = region_name
        self._chain = CredentialChain(profile, region_name)
        self._credentials = credentials

    def models_url(self) -> str:
        """The address of the list of models, on a different host from the models themselves."""
        return self.address("/foundation-models").replace("//bedrock-runtime.", "//bedrock.")

    async def signed(self, url: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        # An API key, or the caller's own header, replaces the signature: a request has one Authorization.
        if any(name.lower() == "authorization" for name in headers):
            return headers
        source = self._credentials
        if source is None:
            credentials = await self._chain.credentials()
        else:
            credentials = await call(source, "credentials") if callable(source) else source
        # Few headers, because a proxy may change or add others, and a changed signed header invalidates the request.
        content_type = {name: value for name, value in headers.items() if name.lower() == "content-type"}
        method = "POST" if body else "GET"
        signature = sign(method, url, content_type, body, credentials=credentials, region=self.region, service=SERVICE)
        return {**headers, **signature}


class BedrockProvider(BedrockEndpoint, HostedClaudeProvider):
    """A provider for Claude on Amazon Bedrock, in Anthropic's format.

    It accepts the arguments of `BedrockEndpoint` and `AnthropicProvider`.
    """

    name = "bedrock"
    hosted_version = "bedrock-2023-05-31"
    in_address = ("model", "stream")

    def url(self, model: str) -> str:
        return self.address(f"/model/{quote(model, safe='')}/invoke")

    def url_of_request(self, model: str, *, stream: bool) -> str:
        return (
            self.address(f"/model/{quote(model, safe='')}/invoke-with-response-stream") if stream else self.url(model)
        )

    def body_reader(self) -> BodyReader:
        return EventStreamReader()

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        body = base64.b64encode(encode_request(payload)).decode()
        url = self.address(f"/model/{quote(model, safe='')}/count-tokens")
        return url, {"input": {"invokeModel": {"body": body}}}, "inputTokens"
