"""Logins, refreshes and refusals, against servers on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import socket
import stat
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from openagentic_sdk.errors import McpAuthError
from openagentic_sdk.parts.mcp.oauth.browser import LoopbackBrowser
from openagentic_sdk.parts.mcp.oauth.fetch import OAuthRequests
from openagentic_sdk.parts.mcp.oauth.login import Browser, OAuth
from openagentic_sdk.parts.mcp.oauth.logins import Logins

from .support import Person, Place, reply

# The pages of an issuer that a person's browser, and a registration, go to.
PAGES = {"authorization": "authorize", "registration": "register"}


class LoginCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.place = Place()
        self.addCleanup(self.place.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "tokens"
        self.server = f"{self.place.url}/mcp"
        self.now = time.time()

    def oauth(self, browser: Browser | None = None, kept: bool = True, **settings: Any) -> OAuth:
        logins = Logins(self.folder if kept else None, self.server)
        return OAuth("srv", self.server, settings, logins=logins, browser=browser, now=lambda: self.now)

    async def request(self, oauth: OAuth, tries: int = 3) -> int:
        """Do what a transport does: send a request, and send it again as long as that may help."""
        for _ in range(tries):
            headers = await oauth.headers()
            status, answered, _ = self.place.let_in(headers.get("Authorization", ""))
            if status == 200 or not await oauth.refused(status, answered.get("WWW-Authenticate")):
                break
        return status

    async def refusal(self, oauth: OAuth) -> str:
        with self.assertRaises(McpAuthError) as caught:
            await self.request(oauth)
        return str(caught.exception)


class LoginTest(LoginCase):
    async def test_a_person_lets_us_in_once_and_every_later_process_too(self) -> None:
        person = Person(self.place)
        self.assertEqual(await self.request(self.oauth(person)), 200)
        self.assertEqual(
            self.place.paths(),
            [
                "/.well-known/oauth-protected-resource/mcp",
                "/.well-known/oauth-authorization-server",
                "/register",
                "/token",
            ],
        )
        (visit,) = person.visits
        self.assertEqual((visit["scope"], visit["resource"]), ("read", self.server))
        registered = json.loads(self.place.asked[2][1])
        self.assertEqual(registered["application_type"], "native")
        self.assertEqual(registered["grant_types"], ["authorization_code", "refresh_token"])
        self.assertEqual(await self.request(self.oauth()), 200)
        (file,) = self.folder.glob("*.json")
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o700)

    async def test_a_run_asks_nobody_and_reports_what_to_do(self) -> None:
        self.assertIn("`openagentic-sdk mcp login srv`", await self.refusal(self.oauth()))

    async def test_a_token_is_renewed_before_it_ends(self) -> None:
        await self.request(self.oauth(Person(self.place)))
        self.now += 3590
        oauth = self.oauth()
        self.assertEqual(await self.request(oauth), 200)
        self.assertEqual(self.place.paths()[-1], "/token")
        self.assertIn("resource=http", self.place.asked[-1][1])
        count = len(self.place.asked)
        self.assertEqual(await self.request(oauth), 200)
        self.assertEqual(len(self.place.asked), count)

    async def test_a_token_that_is_refused_early_is_renewed_too(self) -> None:
        oauth = self.oauth(Person(self.place))
        await self.request(oauth)
        await self.request(oauth)
        self.place.accepted = set()
        self.assertEqual(await self.request(oauth), 200)

    async def test_a_kept_token_that_is_refused_on_its_first_use_is_renewed_and_once_only(self) -> None:
        await self.request(self.oauth(Person(self.place)))
        self.place.accepted = set()
        self.assertEqual(await self.request(self.oauth()), 200)
        self.assertEqual(self.place.paths().count("/token"), 2)
        self.place.let_in = lambda authorization: reply(401, {})  # type: ignore[method-assign]
        self.assertIn("mcp login srv", await self.refusal(self.oauth()))
        self.assertEqual(self.place.paths().count("/token"), 3)

    async def test_pairs_of_metadata_as_the_world_has_them(self) -> None:
        url = self.place.url
        for named, calls_itself, says, fits in (
            (url, url, url, True),
            (f"{url}/", url, url, True),
            (url, f"{url}/", f"{url}/", True),
            (f"{url}/", url, f"{url}/", True),
            (url, url, f"{url}x", False),
            (url, f"{url}//", url, False),
        ):
            with self.subTest(named=named, issuer=calls_itself):
                self.place.resource = {"authorization_servers": [named]}
                self.place.metadata = {"issuer": calls_itself}
                self.place.callback = {"iss": says}
                oauth = self.oauth(Person(self.place), kept=False)
                if fits:
                    self.assertEqual(await self.request(oauth), 200)
                else:
                    with self.assertRaises(McpAuthError):
                        await oauth.log_in()
        self.place.callback, self.place.metadata = {}, {}
        for named in (url, f"{url}/"):  # a stored login is found under both spellings
            self.place.resource = {"authorization_servers": [named]}
            await self.oauth(Person(self.place)).log_in()
        self.assertEqual(self.place.paths().count("/register"), 6)

    async def test_a_client_that_its_issuer_refuses_immediately_is_registered_again_before_anybody_waits(self) -> None:
        await self.oauth(Person(self.place)).log_in()
        usual, self.place.clients = self.place.authorize, {}

        def door(said: dict[str, str]) -> Any:
            return usual(said) if said["client_id"] in self.place.clients else reply(400, {"error": "invalid_client"})

        self.place.routes["/authorize"] = door
        person = Person(self.place)
        await self.oauth(person).log_in()
        self.assertEqual((len(person.visits), self.place.paths().count("/register")), (1, 2))

    async def test_a_secret_goes_to_the_issuer_that_the_entry_names_and_to_nobody_else(self) -> None:
        self.place.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        entry = {"clientId": "mine", "clientSecret": "hunter2"}
        for issuer, words in (
            (None, "set oauth.issuer"),
            ("https://other.example", "its entry requires https://other.example"),
        ):
            pinned = {} if issuer is None else {"issuer": issuer}
            with self.assertRaisesRegex(McpAuthError, words) as caught:
                await self.oauth(Person(self.place), **entry, **pinned).log_in()
            self.assertNotIn("hunter2", str(caught.exception))
        self.assertNotIn("hunter2", str(self.place.asked))
        await self.oauth(Person(self.place), **entry, issuer=self.place.url).log_in()
        self.assertIn("hunter2", self.place.asked[-1][1])

    async def test_a_server_that_moves_us_to_its_path_with_a_slash_is_followed_with_what_was_posted(self) -> None:
        def moved(said: dict[str, str]) -> Any:
            return 307, {"Location": f"{self.place.url}/mcp/"}, b""

        self.place.routes["/mcp"] = moved
        self.place.routes["/mcp/"] = lambda said: self.place.let_in("")
        await self.oauth(Person(self.place)).log_in()
        self.place.routes["/mcp"] = lambda said: (307, {"Location": "https://elsewhere.example/mcp/"}, b"")
        with self.assertRaisesRegex(McpAuthError, "not followed"):
            await self.oauth(Person(self.place)).log_in()

    async def test_tokens_that_could_not_be_stored_replace_the_stored_ones_until_those_change(self) -> None:
        await self.request(self.oauth(Person(self.place)))
        oauth = self.oauth()
        self.assertEqual(await self.request(oauth), 200)
        (file,) = self.folder.glob("*.json")
        lock = file.with_name(f".{file.name}.lock")
        lock.unlink()
        lock.mkdir()  # the file of logins cannot be changed now
        for _ in range(3):
            self.now += 4000
            self.assertEqual(await self.request(oauth), 200)
        self.place.accepted = set()  # the stored tokens are not a renewal by another process
        self.assertEqual(await self.request(oauth, tries=2), 200)
        self.assertEqual(self.place.paths().count("/token"), 5)
        lock.rmdir()
        tokens = await self.oauth(Person(self.place)).log_in()
        self.assertEqual(await self.request(oauth), 200)
        self.assertEqual(await oauth.headers(), {"Authorization": f"Bearer {tokens.access}"})

    async def test_many_at_once_renew_one_token_once(self) -> None:
        await self.request(self.oauth(Person(self.place)))
        self.now += 4000
        several = [self.oauth() for _ in range(5)]
        found = await asyncio.gather(*(self.request(each) for each in several))
        self.assertEqual(found, [200] * 5)
        self.assertEqual(self.place.paths().count("/token"), 2)

    async def test_a_client_that_its_issuer_forgot_registers_again(self) -> None:
        person = Person(self.place)
        await self.request(self.oauth(person))
        self.place.clients = {"client-0": "somebody else"}
        self.place.accepted, self.place.grants = set(), {}
        self.assertEqual(await self.request(self.oauth(person), tries=5), 200)
        self.assertEqual(self.place.paths().count("/register"), 2)

    async def test_a_registration_is_used_again_and_its_port_is_asked_for(self) -> None:
        person = Person(self.place)
        await self.oauth(person).log_in()
        await self.oauth(person).log_in()
        self.assertEqual(self.place.paths().count("/register"), 1)
        self.assertEqual(person.wishes, [(None, None), (None, 4321)])
        elsewhere = Person(self.place, "http://127.0.0.1:9999/callback")
        await self.oauth(elsewhere, callbackPort=9999).log_in()
        self.assertEqual((self.place.paths().count("/register"), elsewhere.wishes), (2, [(9999, 4321)]))

    async def test_a_server_that_refuses_a_new_token_is_not_asked_forever(self) -> None:
        self.place.routes["/token"] = lambda said: reply(200, {"access_token": "x", "token_type": "Bearer"})
        person = Person(self.place)
        self.assertIn("just issued", await self.refusal(self.oauth(person)))
        self.assertEqual(len(person.visits), 1)

    async def test_more_scopes_are_asked_for_with_those_that_we_have(self) -> None:
        person = Person(self.place)
        oauth = self.oauth(person)
        await self.request(oauth)
        wider = 'Bearer error="insufficient_scope", scope="write"'
        self.assertTrue(await oauth.refused(403, wider))
        self.assertEqual(person.visits[-1]["scope"], "read write")
        self.assertFalse(await oauth.refused(403, wider))
        self.assertFalse(await oauth.refused(403, 'Bearer error="other", scope="more"'))
        self.assertFalse(await oauth.refused(403, None))
        with self.assertRaisesRegex(McpAuthError, "mcp login srv --scope 'read write admin'"):
            await self.oauth().refused(403, 'Bearer error="insufficient_scope", scope="admin"')

    async def test_a_command_that_a_person_is_to_type_contains_nothing_else_that_a_shell_would_run(self) -> None:
        with self.assertRaises(McpAuthError) as caught:
            await self.oauth().refused(403, 'Bearer error="insufficient_scope", scope="a\'; id; $(id) \x1b[2J"')
        command = str(caught.exception).rpartition(": ")[2].strip("`")
        self.assertEqual(shlex.split(command)[-2:], ["--scope", r"a'; id; $(id) \x1b[2J"])

    async def test_another_issuer_gets_nothing_of_the_first_ones(self) -> None:
        other = Place()
        self.addCleanup(other.close)
        person = Person(self.place)
        oauth = self.oauth(person)
        await self.request(oauth)
        await self.request(oauth)
        self.place.resource = {"authorization_servers": [other.url]}
        self.place.accepted, person.place = {"access-never"}, other
        other.callback = {"iss": other.url}
        headers = await oauth.headers()
        self.assertTrue(await oauth.refused(401, self.place.let_in("")[1]["WWW-Authenticate"]))
        self.assertNotIn(headers["Authorization"][7:], str(other.asked))
        self.assertEqual(other.paths(), ["/.well-known/oauth-authorization-server", "/register", "/token"])

    async def test_logging_out_forgets_everything(self) -> None:
        await self.request(self.oauth(Person(self.place)))
        logins = Logins(self.folder, self.server)
        self.assertTrue(logins.forget())
        self.assertFalse(logins.forget())
        self.assertNotIn("access-", "".join(file.read_text() for file in self.folder.iterdir()))
        self.assertIn("mcp login", await self.refusal(self.oauth()))

    async def test_a_login_that_cannot_be_saved_is_an_error_unless_it_is_kept_in_memory(self) -> None:
        self.folder.parent.joinpath("tokens").write_text("in the way")
        with self.assertRaisesRegex(McpAuthError, "tokens"):
            await self.request(self.oauth(Person(self.place)))
        self.assertEqual(await self.request(self.oauth(Person(self.place), kept=False)), 200)

    async def test_a_damaged_file_is_reported_and_left_unchanged(self) -> None:
        await self.request(self.oauth(Person(self.place)))
        (file,) = self.folder.glob("*.json")
        for text in ("{", '{"login": []}', '{"login": {"issuer": "i", "issuers": {"i": {"tokens": {"access": 1}}}}}'):
            file.write_text(text)
            with self.subTest(text):
                self.assertRegex(await self.refusal(self.oauth()), "move it aside|mcp login")
                self.assertEqual(file.read_text(), text)


class HostileTest(LoginCase):
    """What a hostile server may send instead of a correct answer."""

    async def failed(self, **metadata: Any) -> str:
        self.place.metadata = metadata
        person = Person(self.place)
        said = await self.refusal(self.oauth(person, kept=False))
        self.assertEqual(person.visits, [])
        return said

    async def test_metadata_that_may_not_be_used(self) -> None:
        self.assertIn("calls itself", await self.failed(issuer=self.place.url + "/x"))
        self.assertIn("PKCE", await self.failed(code_challenge_methods_supported=None))
        self.assertIn("not https", await self.failed(token_endpoint="http://example.com/token"))
        self.assertIn("not https", await self.failed(authorization_endpoint="http://192.168.0.1/"))
        self.assertIn("does not register clients", await self.failed(registration_endpoint=None))

    async def test_a_code_of_another_issuers_login_page_never_reaches_the_issuer_that_named_that_page(self) -> None:
        honest = Place()
        self.addCleanup(honest.close)
        foreign = {f"{name}_endpoint": f"{honest.url}/{path}" for name, path in PAGES.items()}
        words = await self.failed(**foreign, authorization_response_iss_parameter_supported=None)
        self.assertIn(f"set oauth.issuer of the server's entry to {self.place.url}", words)
        for honest.callback in ({"iss": None}, {}):  # it does not identify itself, or does
            self.place.metadata = foreign
            with self.subTest(honest.callback), self.assertRaises(McpAuthError):
                await self.oauth(Person(honest), kept=False).log_in()
        self.assertNotIn("/token", self.place.paths())

    async def test_an_issuer_that_the_entry_names_may_ask_people_at_another_address(self) -> None:
        elsewhere = Place()
        self.addCleanup(elsewhere.close)
        elsewhere.callback, elsewhere.grants = {"iss": None}, self.place.grants
        self.place.metadata = {"authorization_response_iss_parameter_supported": None} | {
            f"{name}_endpoint": f"{elsewhere.url}/{path}" for name, path in PAGES.items()
        }
        await self.oauth(Person(elsewhere), kept=False, issuer=self.place.url).log_in()
        self.assertIn("/token", self.place.paths())

    async def test_addresses_in_private_networks_are_not_asked(self) -> None:
        for address in (
            "https://10.0.0.1",
            "https://169.254.169.254/x",
            "https://[fd00::1]",
            "https://[::ffff:10.0.0.1]",
        ):
            self.place.resource = {"authorization_servers": [address]}
            with self.subTest(address):
                self.assertIn("is not fetched", await self.failed())
        self.place.challenge = 'Bearer resource_metadata="http://metadata.google.internal/x"'
        self.assertIn("not https", await self.failed())
        self.assertEqual(self.place.paths().count("/token"), 0)

    async def test_redirects_stay_at_home_and_end(self) -> None:
        path = "/.well-known/oauth-protected-resource/mcp"
        for target, wanted in (
            ("https://169.254.169.254/", "is not followed"),
            ("http://127.0.0.1:1/", "is not followed"),
            (path, "more than 3 times"),
        ):
            self.place.routes[path] = lambda said, target=target: reply(302, {}, Location=target)  # type: ignore[misc]
            with self.subTest(target):
                self.assertIn(wanted, await self.failed())
        del self.place.routes[path]
        self.place.routes["/token"] = lambda said: reply(307, {}, Location="/elsewhere")
        self.assertIn("is not followed", await self.refusal(self.oauth(Person(self.place), kept=False)))

    async def test_huge_broken_and_strange_documents(self) -> None:
        path = "/.well-known/oauth-protected-resource/mcp"
        for body, wanted in (
            (b" " * 300_000 + b"{}", "more than"),
            (b"[" * 100_000, "no usable metadata"),
            (b'{"resource": null}', "None|NoneType"),
            (b"\xff\xfe", "no usable metadata"),
            (b"", "no usable metadata"),
        ):
            self.place.routes = {path: lambda said, body=body: (200, {}, body)}  # type: ignore[dict-item, misc]
            self.place.routes["/.well-known/oauth-authorization-server"] = lambda said: reply(404, {})
            with self.subTest(body[:20]):
                self.assertRegex(await self.failed(), wanted)
        self.place.routes = {path: lambda said: reply(503, {})}
        self.assertIn("answered 503", await self.failed())

    async def test_an_answer_that_drips_is_not_waited_for(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as slow:
            stop = threading.Event()

            def drip() -> None:
                peer, _ = slow.accept()
                with peer, contextlib.suppress(OSError):
                    while not stop.wait(0.02):
                        peer.sendall(b"H")

            thread = threading.Thread(target=drip)
            thread.start()
            began = time.monotonic()
            url = f"http://127.0.0.1:{slow.getsockname()[1]}/"
            with self.assertRaises(McpAuthError):
                await OAuthRequests(url, timeout_s=0.2).get(url)
            stop.set()
            thread.join()
        self.assertLess(time.monotonic() - began, 60)

    async def test_no_error_contains_a_secret(self) -> None:
        oauth = self.oauth(Person(self.place))
        await self.request(oauth)
        (file,) = self.folder.glob("*.json")
        refresh = next(word for word in file.read_text().split('"') if word.startswith("refresh-"))
        self.now += 4000
        echo = {"error": "server_error", "error_description": f"what is {refresh}?"}
        self.place.routes["/token"] = lambda said: reply(500, echo)
        said = await self.refusal(oauth)
        self.assertIn("server_error", said)
        self.assertNotIn(refresh, said + repr(oauth) + repr(vars(oauth)))


class BrowserTest(unittest.IsolatedAsyncioTestCase):
    """The small server to which the browser is redirected."""

    async def test_only_what_belongs_to_the_login_ends_it(self) -> None:
        told: list[str] = []
        pages: list[str] = []

        def visit(url: str) -> None:
            base = self.redirect_uri
            for target in (
                f"{base}?code=evil&state=guess",
                base.replace("/callback", "/favicon.ico"),
                f"{base}?state=",
            ):
                try:
                    urlopen(target, timeout=300)
                except HTTPError as error:
                    pages.append(f"{error.code}")
                    error.close()
            with urlopen(f"{base}?code=good&state=mine", timeout=300) as page:
                pages.append(page.read().decode())

        browser = LoopbackBrowser(told.append, open_url=visit)
        async with browser(None, None) as landing:
            self.redirect_uri = landing.redirect_uri
            query = await landing.go("https://issuer/authorize?x", "mine")
        self.assertEqual(query["code"], ["good"])
        self.assertEqual(pages[:3], ["404"] * 3)
        self.assertIn("issuer", told[0])

    async def test_an_address_from_another_machine_can_be_pasted(self) -> None:
        lines = iter(["", "http://127.0.0.1/other?state=mine", "http://127.0.0.1:1/callback?code=c&state=mine"])

        async def paste() -> str | None:
            return next(lines, None)

        browser = LoopbackBrowser(lambda line: None, open_url=lambda url: None, paste=paste)
        async with browser(None, None) as landing:
            self.assertEqual((await landing.go("https://i/", "mine"))["code"], ["c"])

    async def test_a_login_whose_browser_never_returns_ends(self) -> None:
        browser = LoopbackBrowser(lambda line: None, open_url=lambda url: None, wait_s=0.05)
        async with browser(None, None) as landing:
            with self.assertRaisesRegex(McpAuthError, "was not completed"):
                await landing.go("https://i/", "mine")

    async def test_a_prescribed_port_in_use_is_an_error_and_a_preferred_one_is_replaced(self) -> None:
        browser = LoopbackBrowser(lambda line: None, open_url=None)
        async with browser(None, None) as first:
            port = int(first.redirect_uri.split(":")[2].split("/")[0])
            with self.assertRaisesRegex(McpAuthError, f"port {port}"):
                async with browser(port, None):
                    self.fail("it was used")
            async with browser(None, port) as second:
                self.assertNotEqual(second.redirect_uri, first.redirect_uri)
