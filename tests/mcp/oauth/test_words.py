"""The pure parts of a login, as tables."""

from __future__ import annotations

import re
import unittest
from typing import Any

from openagentic_sdk.errors import McpAuthError, OptionsError
from openagentic_sdk.parts.mcp.oauth.challenge import Challenge, read_challenge
from openagentic_sdk.parts.mcp.oauth.grant import (
    Attempt,
    OAuthClient,
    Tokens,
    authorize_url,
    new_attempt,
    own_client,
    read_callback,
    read_registration,
    read_tokens,
    token_request,
)
from openagentic_sdk.parts.mcp.oauth.login import read_settings
from openagentic_sdk.parts.mcp.oauth.metadata import (
    Issuer,
    canonical_resource,
    issuer_urls,
    read_issuer,
    read_resource,
    resource_urls,
)


class ChallengeTest(unittest.TestCase):
    def test_the_first_bearer_challenge_counts_however_it_is_written(self) -> None:
        for header, wanted in (
            (None, Challenge()),
            ("", Challenge()),
            ("Bearer", Challenge()),
            ('Bearer scope="a b"', Challenge(None, "a b", None)),
            ("bearer scope=a , error = insufficient_scope", Challenge(None, "a", "insufficient_scope")),
            ('Basic realm="x, Bearer scope=\\"no\\"", Bearer scope="yes"', Challenge(None, "yes", None)),
            ('Bearer scope="a", Bearer scope="b"', Challenge(None, "a", None)),
            ('Bearer scope="a", Digest scope="b"', Challenge(None, "a", None)),
            ('Bearer scope="a", scope="b"', Challenge(None, "a", None)),
            ('Negotiate abc==, Bearer resource_metadata="https://h/x"', Challenge("https://h/x", None, None)),
            ('Bearer scope="never closed', Challenge()),
            ('Bearer scope="a\\"b"', Challenge(None, 'a"b', None)),
            ("Bearer " + "a=b, " * 5000, Challenge()),
            ('Bearer "' + "\\" * 8000, Challenge()),
        ):
            with self.subTest(header and header[:60]):
                self.assertEqual(read_challenge(header), wanted)


class MetadataTest(unittest.TestCase):
    def test_where_metadata_may_be_in_its_order(self) -> None:
        known = "/.well-known/oauth-protected-resource"
        self.assertEqual(resource_urls("https://h/a/mcp/", None), [f"https://h{known}/a/mcp", f"https://h{known}"])
        self.assertEqual(resource_urls("https://h", "https://x/y"), ["https://x/y", f"https://h{known}"])
        server, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
        self.assertEqual(
            issuer_urls("https://h/t"), [f"https://h{server}/t", f"https://h{openid}/t", f"https://h/t{openid}"]
        )
        self.assertEqual(issuer_urls("https://h/"), [f"https://h{server}", f"https://h{openid}"])
        for wrong in ("https://h/?a=b", "https://h/#f", "ftp://h", "https://user@h", "//h", ""):
            with self.subTest(wrong), self.assertRaises(McpAuthError):
                issuer_urls(wrong)

    def test_a_document_about_another_server_does_not_count(self) -> None:
        def resource(named: Any, server: str = "https://h/a/mcp") -> str:
            return read_resource({"resource": named, "authorization_servers": ["https://i"]}, server).resource

        for named in ("https://h/a/mcp", "https://h/a/mcp/", "https://H/a", "https://h", "https://h:443/a"):
            self.assertEqual(resource(named), named)
        for named in (
            "https://h/a/mc",
            "https://h/b",
            "http://h/a/mcp",
            "https://h:8443/a",
            "https://evil/a",
            None,
            5,
            {},
        ):
            with self.subTest(named), self.assertRaises(McpAuthError):
                resource(named)
        for issuers in (None, [], "https://i", [5, None], [""]):
            with self.subTest(issuers), self.assertRaises(McpAuthError):
                read_resource({"resource": "https://h", "authorization_servers": issuers}, "https://h")

    def test_an_issuer_is_exactly_who_was_asked_and_checks_pkce(self) -> None:
        good = {
            "issuer": "https://i/t",
            "authorization_endpoint": "https://i/a",
            "token_endpoint": "https://i/t",
            "registration_endpoint": None,
            "scopes_supported": None,
            "token_endpoint_auth_methods_supported": None,
            "code_challenge_methods_supported": ["plain", "S256"],
            "authorization_response_iss_parameter_supported": None,
        }
        self.assertEqual(read_issuer(good, "https://i/t"), Issuer("https://i/t", "https://i/a", "https://i/t"))
        for change in (
            {"issuer": "https://i/t/"},
            {"issuer": "https://I/t"},
            {"issuer": None},
            {"code_challenge_methods_supported": None},
            {"code_challenge_methods_supported": ["plain"]},
            {"code_challenge_methods_supported": "S256x"},
            {"authorization_endpoint": None},
            {"authorization_endpoint": "javascript:alert(1)"},
            {"authorization_endpoint": "file:///etc/passwd"},
            {"token_endpoint": ["https://i/t"]},
            {"token_endpoint": "https://i/t\r\nX: y"},
            {"registration_endpoint": 5},
        ):
            with self.subTest(change), self.assertRaises(McpAuthError):
                read_issuer({**good, **change}, "https://i/t")

    def test_a_resource_has_no_slash_at_its_end(self) -> None:
        self.assertEqual(canonical_resource("HTTPS://Host:443/mcp/"), "https://host/mcp")
        self.assertEqual(canonical_resource("https://host/"), "https://host")


class CallbackTest(unittest.TestCase):
    ATTEMPT = Attempt("s", "v")

    def code(self, sends_issuer: bool, **query: str) -> str:
        issuer = Issuer("https://i", "https://i/a", "https://i/t", sends_issuer=sends_issuer)
        return read_callback({name: [value] for name, value in query.items()}, self.ATTEMPT, issuer)

    def test_the_table_of_rfc_9207_and_the_state(self) -> None:
        for sends in (True, False):
            self.assertEqual(self.code(sends, state="s", code="c", iss="https://i"), "c")
            for wrong in (
                {"state": "t", "iss": "https://i"},
                {"iss": "https://i"},
                {"state": "s", "iss": "https://i/"},
                {"state": "s", "iss": "https://I"},
                {"state": "s", "iss": ""},
                {"state": "s", "iss": "https://i", "error": "access_denied"},
            ):
                with self.subTest(wrong, sends=sends), self.assertRaises(McpAuthError):
                    self.code(sends, code="c", **wrong)
        self.assertEqual(self.code(False, state="s", code="c"), "c")
        with self.assertRaisesRegex(McpAuthError, "lacks the required"):
            self.code(True, state="s", code="c")

    def test_an_error_of_somebody_else_is_not_shown(self) -> None:
        for query in ({"state": "x", "error": "evil"}, {"state": "s", "iss": "https://evil", "error": "evil_text"}):
            with self.assertRaises(McpAuthError) as caught:
                self.code(True, **query)
            self.assertNotIn("evil_text", str(caught.exception))
            self.assertIsNone(caught.exception.code)

    def test_a_duplicate_parameter_is_refused(self) -> None:
        issuer = Issuer("https://i", "https://i/a", "https://i/t")
        for query in ({"state": ["s", "s"], "code": ["c"]}, {"state": ["s"], "code": ["c", "d"]}):
            with self.assertRaises(McpAuthError):
                read_callback(query, self.ATTEMPT, issuer)


class RequestTest(unittest.TestCase):
    def test_what_a_browser_is_sent_with(self) -> None:
        attempt = new_attempt()
        self.assertTrue(re.fullmatch(r"[A-Za-z0-9_-]{43}", attempt.verifier) and attempt.challenge != attempt.verifier)
        self.assertNotEqual(attempt, new_attempt())
        issuer = Issuer("https://i", "https://i/a?tenant=1", "https://i/t")
        url = authorize_url(
            issuer, OAuthClient("me & you"), attempt, redirect_uri="http://l/c", scope="a b", resource="https://r"
        )
        self.assertTrue(url.startswith("https://i/a?tenant=1&response_type=code&client_id=me%20%26%20you&"))
        for part in ("scope=a%20b", "code_challenge_method=S256", "resource=https%3A%2F%2Fr", f"state={attempt.state}"):
            self.assertIn(part, url)
        self.assertNotIn(attempt.verifier, url)
        bare = authorize_url(
            issuer, OAuthClient("c"), attempt, redirect_uri="http://l/c", scope="", resource="https://r"
        )
        self.assertNotIn("scope", bare)

    def test_how_a_client_shows_who_it_is(self) -> None:
        form = {"grant_type": "x"}
        self.assertEqual(token_request(OAuthClient("c"), form), ({"grant_type": "x", "client_id": "c"}, {}))
        posted = ({"grant_type": "x", "client_id": "c", "client_secret": "s"}, {})
        self.assertEqual(token_request(OAuthClient("c", "s", "client_secret_post"), form), posted)
        basic = token_request(OAuthClient("a:b", "s%", "client_secret_basic"), form)
        self.assertEqual(basic, (form, {"Authorization": "Basic YSUzQWI6cyUyNQ=="}))

    def test_a_configured_client_comes_before_a_document(self) -> None:
        issuer = Issuer("https://i", "https://i/a", "https://i/t", takes_documents=True)
        document = {"clientMetadataUrl": "https://me/client.json"}
        self.assertEqual(own_client({**document, "clientId": "c"}, issuer), OAuthClient("c"))
        self.assertEqual(own_client(document, issuer), OAuthClient("https://me/client.json"))
        self.assertIsNone(own_client(document, Issuer("https://i", "https://i/a", "https://i/t")))
        secret = own_client({"clientId": "c", "clientSecret": "s"}, issuer)
        self.assertEqual(secret, OAuthClient("c", "s", "client_secret_basic"))

    def test_registrations_that_we_cannot_be(self) -> None:
        good = read_registration(201, {"client_id": "c", "client_secret": "s"}, "https://i", "http://l")
        self.assertEqual((good.method, good.is_registered), ("client_secret_basic", True))
        for data in (
            {},
            {"client_id": 5},
            {"client_id": "c", "token_endpoint_auth_method": "private_key_jwt"},
            {"client_id": "c", "token_endpoint_auth_method": "client_secret_post"},
            {"client_id": "c", "token_endpoint_auth_method": ["none"]},
            {"client_id": "\ud800"},
            {"client_id": "c", "client_secret": "s\ud800"},
            {"client_id": "c", "client_secret": "s\nX: y"},
            {"client_id": "c", "client_secret": 5},
        ):
            with self.subTest(data), self.assertRaises(McpAuthError):
                read_registration(201, data, "https://i", "http://l")

    def test_valid_tokens_are_accepted_and_others_refused(self) -> None:
        def read(data: dict[str, Any], before: Tokens | None = None) -> Tokens:
            return read_tokens(200, data, "https://i", now=100.0, before=before, scope="asked", sent_secrets=["secret"])

        bare = {"access_token": "t", "token_type": "BEARER"}
        self.assertEqual(read(bare), Tokens("t", None, "asked", None))
        whole = {**bare, "expires_in": "60", "scope": "less", "refresh_token": "r"}
        self.assertEqual(read(whole), Tokens("t", "r", "less", 160.0))
        self.assertEqual(read(bare, Tokens("old", "kept")).refresh, "kept")
        unsendable = read({**bare, "refresh_token": "\ud800", "scope": "a\x1b[2J"})
        self.assertEqual((unsendable.refresh, unsendable.scope), (None, "asked"))
        for odd in (-5, 0, "soon", None, True, [], float("inf"), "nan", 10**400):
            self.assertIsNone(read({**bare, "expires_in": odd}).expires_at)
        for wrong in ({"access_token": "a\r\nb"}, {"access_token": ""}, {"access_token": 5}, {"token_type": "mac"},
                      {"token_type": None}, {"access_token": "\u00e9"}):  # fmt: skip
            with self.subTest(wrong), self.assertRaises(McpAuthError):
                read({**bare, **wrong})
        with self.assertRaises(McpAuthError) as caught:
            read({"error": "invalid_grant", "error_description": "no secret \x1b[31m here"})
        self.assertEqual(caught.exception.code, "invalid_grant")
        self.assertEqual(str(caught.exception), "https://i refused: invalid_grant no [hidden] [31m here")
        self.assertNotIn("t0ken", repr(Tokens("t0ken", "t0ken")) + repr(OAuthClient("c", "t0ken")))


class SettingsTest(unittest.TestCase):
    def test_settings_are_checked_and_their_errors_contain_no_secret(self) -> None:
        self.assertEqual(read_settings("s", None), {})
        self.assertEqual(read_settings("s", {"clientId": "c", "callbackPort": None}), {"clientId": "c"})
        for wrong in ({"clientId": ""}, {"callbackPort": True}, {"callbackPort": 70000}, {"clientMetadataUrl": "http://x/y"},
                      {"scopes": ["a"]}, {"other": 1}, {"clientSecret": "\ud800"}, {"scopes": "\ud800"}):  # fmt: skip
            with self.subTest(wrong), self.assertRaisesRegex(OptionsError, "'s'"):
                read_settings("s", wrong)
        with self.assertRaises(OptionsError) as caught:
            read_settings("s", {"clientSecret": ["hunter2"]})
        self.assertNotIn("hunter2", str(caught.exception))
