"""Every row of fixtures/tools_run/urls.json through the tool: refused before anything is sent, or sent."""

from __future__ import annotations

import ipaddress
import json
import unittest
from collections.abc import Mapping

from openagentic_sdk.errors import AddressRefusedError
from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.web.address import check_addresses, parse_web_url, refusal_of
from openagentic_sdk.tools.web_fetch import WebFetchTool

from .support import FIXTURES

ROWS = json.loads((FIXTURES / "urls.json").read_text(encoding="utf-8"))


class UrlTable(unittest.TestCase):
    def fetch(self, row: Mapping[str, object]) -> list[str]:
        """Fetch the URL, and return the URLs that were requested."""
        asked: list[str] = []

        def transport(url: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
            asked.append(url)
            return 200, {"Content-Type": "text/plain"}, b"ok"

        tool = WebFetchTool(
            allow_private_networks=bool(row.get("allow_private_networks")),
            resolver=lambda host: row.get("resolves") or [],
            transport=transport,
        )
        try:
            tool.run_sync({"url": row["url"]}, ToolContext())
        except AddressRefusedError as error:
            self.assertIn(str(row.get("reason")), str(error))
            self.assertEqual(asked, [], "something was sent before the refusal")
        return asked

    def test_the_table_is_long_enough(self) -> None:
        self.assertGreaterEqual(len(ROWS), 80)

    def test_refused_addresses_are_refused_before_anything_is_sent(self) -> None:
        for row in ROWS:
            with self.subTest(**row):
                self.assertEqual(len(self.fetch(row)), 0 if row["expect"] == "refuse" else 1)

    def test_half_a_letter_is_refused_before_anything_is_sent(self) -> None:
        for url in ("http://a.example/\ud800", "http://a.example/?q=\udfff", "http://\udc80.example/"):
            with self.subTest(ascii(url)), self.assertRaises(AddressRefusedError):
                parse_web_url(url)


class AddressTable(unittest.TestCase):
    def test_the_edges_of_refused_networks_are_exact(self) -> None:
        allowed = (
            "9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 128.0.0.0 126.255.255.255 172.15.255.255 172.32.0.0 "
        )
        allowed += "192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 1.0.0.0 2600:: 2a00:: 2003:: "
        for text in allowed.split():
            self.assertIsNone(refusal_of(ipaddress.ip_address(text)), text)

    def test_an_ipv4_address_in_ipv6_form_is_fetched_or_refused_as_what_it_leads_to(self) -> None:
        self.assertEqual(parse_web_url("http://[::ffff:8.8.8.8]/x").host, "8.8.8.8")
        found = check_addresses("http://a.example/", "a.example", ["::ffff:8.8.8.8"], allow_private_networks=False)
        self.assertEqual(found, [ipaddress.ip_address("8.8.8.8")])
        private = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1"]
        for text in (f"::ffff:{one}" for one in private):
            self.assertIsNotNone(refusal_of(ipaddress.ip_address(text)), text)
            with self.assertRaises(AddressRefusedError):
                check_addresses("http://a.example/", "a.example", [text], allow_private_networks=False)
        # 6to4, NAT64 and Teredo addresses lead to a host that was not checked.
        for text in [
            "2002:7f00:1::",
            "2002:a00:1::",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "2001:0:1::80ff:fffe",
            "::127.0.0.1",
        ]:
            self.assertIsNotNone(refusal_of(ipaddress.ip_address(text)), text)
        address = ipaddress.ip_address("::ffff:100.100.100.200")
        self.assertIsNotNone(refusal_of(address, allow_private_networks=True))

    def test_whatever_python_calls_private_is_refused_too(self) -> None:
        for text in ("10.0.0.1", "127.0.0.1", "169.254.1.1", "192.168.0.1", "240.0.0.1", "::1", "fc00::1", "fe80::1"):
            self.assertTrue(ipaddress.ip_address(text).is_private)
            self.assertIsNotNone(refusal_of(ipaddress.ip_address(text)), text)
