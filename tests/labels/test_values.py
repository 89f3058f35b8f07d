"""Whether a value is in a text: by its meaning, and never because it is a part of something longer."""

from __future__ import annotations

import unittest

from openagentic_sdk.parts.labels.values import KnownText

FOUND = (
    ("bob@a.org", "write to Bob@A.org."),
    (1000, "pay $1,000.00 now"),
    (50, "send 50.00 to him"),
    ("50", "send 50.00"),
    (1000.5, "send 1.000,50 EUR"),
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

    def test_a_date_without_a_year_is_that_day_of_any_year_and_one_with_a_year_is_not(self) -> None:
        self.assertIsNotNone(KnownText("on May 20").place_of("2031-05-20"))
        self.assertIsNone(KnownText("on May 20, 2024").place_of("2031-05-20"))


if __name__ == "__main__":
    unittest.main()
