"""Whether a value occurs in a text: judged by its meaning, never as a part of something longer."""

from __future__ import annotations

import unittest

from openagentic_sdk.ground.checks import shown
from openagentic_sdk.parts.labels.values import KnownText

FOUND = (
    ("bob@a.org", "write to Bob@A.org."),
    ("bob@a.org, eve@b.org", "write to eve@b.org and <bob@a.org>"),
    ("BE68539007547034", "pay from BE68 5390 0754 7034 this time"),
    ("BE68539007547034", "pay from BE68 5390 0754 7034 50 EUR"),
    (50, 'the form {"amount":50}'),
    (50, "pay 50, please"),
    (1234567, "pay 1.234.567"),
    ("https://a.org/%7Ebob", "open https://a.org/~bob."),
    ("https://a.org", "open https://a.org/"),
    ("2024-05-20T10:00", "on 2024-05-20, at 10:00"),
    ("Bob", "look at bob's bill"),
    ("a\nb", "run\n  a\n  b\nthen"),
    (1000, "pay $1,000.00 now"),
    (50, "send 50.00 to him"),
    ("50", "send 50.00"),
    (1000.5, "send 1.000,50 EUR"),
    (1234, "pay 1,234 now"),
    (123456, "pay 123,456 now"),
    (1234567, "pay 1,234,567"),
    (0.5, "pay 0,500"),
    (1.5, "pay 1,5 now"),
    ("00:30", "at 12:30 am"),
    ("12:30", "at 12:30 pm"),
    ("23:59", "at 11:59 pm"),
    ("10:00:59", "at 10:00:59"),
    ("bob@a.org; eve@b.org", "write to eve@b.org and bob@a.org"),
    ("US133000000121212121212", "to US13 3000 0001 2121 2121 212"),
    ("/etc/passwd", "see /etc/passwd."),
    ("www.a.com", "visit http://www.a.com/"),
    ("https://a.com:443/x", "visit https://A.com/x now"),
    ("2024-05-20 10:00", "to May 20th at 10am"),
    ("2024-05-20", "on the 20th of May, 2024"),
    ("Alice", "Tell Alice about it"),
    ("alice", "Tell 'Alice'."),
    ("bill-december-2023.txt", "pay 'bill-december-2023.txt' please"),
    ("rm -r build", "please rm -r build"),
    (True, "nothing"),
    (None, "nothing"),
)
IN_DOUBT = (
    # addresses of pages
    ("https://a.org@evil.com/", "open https://a.org"),
    ("https://secret@a.org/", "open https://a.org/"),
    ("https://a.org\\@evil.com/", "open https://a.org/"),
    ("https://a.org.evil.com", "open https://a.org"),
    ("https://a.org./x", "open https://a.org/x"),
    ("https://a.org:8443/x", "open https://a.org/x"),
    ("http://a.org/x", "open https://a.org/x"),
    ("https://a.org/x?b=2&a=1", "open https://a.org/x?a=1&b=2"),
    ("https://a.org?Q=1", "open https://a.org?q=1"),
    ("https://a.org/a%2Fb", "open https://a.org/a/b"),
    ("https://a.org/%00", "open https://a.org/"),
    ("https://a.org/x#secret", "open https://a.org/x"),
    ("https://a.org/X", "open https://a.org/x"),
    ("https://a.org/x/", "open https://a.org/x"),
    ("https://a.org/x,", "open https://a.org/x"),
    ("https://\u0430.org", "open https://a.org"),
    ("https://xn--80a.org", "open https://\u0430.org"),
    ("https://ban\u212a.org", "open https://bank.org"),
    ("a.org", "open https://a.org/"),
    ("a.org", "open https://a.org"),
    ("https://a.org\u200b/", "open https://a.org/"),
    # addresses of people
    ("bob+x@a.org", "to bob@a.org"),
    ("bob@a.org", "to x+bob@a.org"),
    ('"bob"@a.org', "to bob@a.org"),
    ("bob@a.org", "to bob@a.org.b.c.d.e.f.g.h.i.evil"),
    ("bob@a.org", "to bob@a.org@evil.com"),
    ("bob@a.org@evil.com", "to bob@a.org"),
    ("bob@a.org,eve@evil.com", "to bob@a.org"),
    ("bob@a.org>", "to bob@a.org.evil>"),
    ("b\u043eb@a.org", "to bob@a.org"),
    ("bob@a.or\u0261", "to bob@a.org"),
    ("bob@a.org", "to bob@a.org\u0430"),
    ("bob\u200b@a.org", "to bob@a.org"),
    # numbers
    (1, "pay 1.000"),
    (1000, "pay 1.000"),
    (1.234, "pay 1,234"),
    (1234, "pay 1.234"),
    (123456, "pay 1,23,456"),
    (1234567.8, "pay 1.234,567.8"),
    (7, "agent 007"),
    ("007", "agent 7"),
    (1000, "pay 1e3"),
    (3, "pay 1e3"),
    (16, "at 0x10"),
    (10, "at 0x10"),
    (50, "pay \uff15\uff10"),
    ("\uff15\uff10", "pay 50"),
    (50, "pay -50"),
    (50, "pay \u221250"),
    (-50, "pay 50"),
    (50, "pay 50 million"),
    (50, "raise it by 50%"),
    (50, "pay 50k"),
    (50, "between 50-60"),
    (12, "call 12 345"),
    (12345, "call 12 345"),
    (1, "take 1/2"),
    (2, "take 1/2"),
    (10, "at 10:30"),
    (5, "version 1.5.2"),
    (10**5000, "pay 1"),
    (1e300, "pay 1"),
    # dates and times
    ("2024-02-01", "on 01/02/2024"),
    ("2024-01-02", "on 01/02/2024"),
    ("/02/2024", "on 01/02/2024"),
    ("10:00", "at 10:00 pm"),
    ("00:00", "at 0:00 pm"),
    ("13:00", "at 13:00 pm"),
    ("10:00:59", "at 10:00"),
    ("10:00Z", "at 10:00"),
    ("2024-05-20T10:00+02:00", "on 2024-05-20 at 10:00"),
    ("10:00", "at 02:10:00"),
    # accounts
    ("BE68 5390 0754 7034", "to BE68 5390 0754 7034 1234 5678"),
    ("DE89370400440532013001", "to DE89370400440532013000"),
    ("DE89370400440532013000", "to XDE89370400440532013000"),
    # paths
    ("/etc/passwd", "see src/etc/passwd"),
    ("/etc/passwd", "see /etc/passwd.bak"),
    ("/etc/passwd", "see /etc//passwd"),
    ("/etc/passwd", "see ~/etc/passwd"),
    ("/A/b", "see /a/b"),
    # words
    ("Pa55word", "it is pa55word"),
    ("pass", "it is pass!word"),
    ("rm a\nrm b", "run rm a rm b"),
    ("general", "in general-secret"),
    ("gene", "in gene\u200bral"),
    ("Brien", "to O'Brien"),
    ("strasse", "in der stra\u00dfe"),
    ("50 60", "first 50, then 60"),
    ("50, 60", "first 50, then 60"),
    ("bob@a.org or eve@b.org", "to bob@a.org and eve@b.org"),
    (".", "one. Two."),
)
NOT_FOUND = (
    ("bob@a.org", "xbob@a.org"),
    ("bob@a.org", "bob@a.organic"),
    (100, "pay 1,000"),
    (7, "at 7:00 on 2024-07-07"),
    ("/etc", "see /etc/passwd"),
    ("http://a.com", "at http://a.com/evil"),
    ("http://a.com", "at http://a.com.evil.org"),
    ("2024-05-20", "on May 21st"),
    ("bob", "bob@evil.com"),
    ("file.txt", "file.txt.exe"),
    ("file.txt", "other/file.txt"),
    ("External_0", "the channel starting with External"),
    ("US133000000121212121212", "to US1330000001212121212127"),
    ("Alice", "Malice"),
)


class ValuesTest(unittest.TestCase):
    def test_a_value_is_found_however_it_is_spelled(self) -> None:
        for value, text in FOUND:
            with self.subTest(value=value, text=text):
                self.assertIsNotNone(KnownText(text).place_of(value))

    def test_no_value_is_found_in_something_longer_or_different(self) -> None:
        for value, text in NOT_FOUND:
            with self.subTest(value=value, text=text):
                self.assertIsNone(KnownText(text).place_of(value))

    def test_ambiguous_texts_are_not_found(self) -> None:
        for value, text in IN_DOUBT:
            with self.subTest(value=shown(value), text=text):
                self.assertIsNone(KnownText(text).place_of(value))

    def test_ambiguous_texts_are_found_as_written(self) -> None:
        for value in ("1.234", "007", "01/02/2024", "10:00Z", "0x10", "https://me@a.org/", "12 345", "-50", "50%"):
            with self.subTest(value):
                self.assertIsNotNone(KnownText(f"Take {value}, please.").place_of(value))

    def test_a_date_without_a_year_is_that_day_of_any_year_and_one_with_a_year_is_not(self) -> None:
        self.assertIsNotNone(KnownText("on May 20").place_of("2031-05-20"))
        self.assertIsNone(KnownText("on May 20, 2024").place_of("2031-05-20"))


if __name__ == "__main__":
    unittest.main()
