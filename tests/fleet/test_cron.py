"""Cron lines: which are accepted, which are refused, and when they fire, compared with a search minute by minute."""

from __future__ import annotations

import random
import unittest
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.fleet.cron import Cron, next_fire, parse_cron, read_zone
from tests.size import sized

# Zones and dates of clock changes, including ones of half an hour, at midnight and of a whole day.
CHANGES = (
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("Asia/Beirut", "2026-03-29"),
    ("Pacific/Apia", "2011-12-30"),
    ("Africa/Casablanca", "2026-02-15"),
    ("UTC", "2028-02-29"),
)


def _fires(text: str, zone: str, start: str, count: int) -> list[str]:
    """The next `count` firing times in wall-clock time, with the UTC offset."""
    cron, where = parse_cron(text), read_zone(zone)
    at, found = datetime.fromisoformat(start).replace(tzinfo=where).timestamp(), []
    for _ in range(count):
        at = next_fire(cron, at, where)
        found.append(datetime.fromtimestamp(at, where).isoformat(" ", "minutes"))
    return found


def _searched(cron: Cron, zone: ZoneInfo, begin: float, minutes: int) -> list[float]:
    """The firing times, found by checking the wall clock in every minute."""
    found, latest = [], datetime.fromtimestamp(begin - 60, zone).replace(tzinfo=None)
    for at in (begin + 60.0 * number for number in range(minutes)):
        wall = datetime.fromtimestamp(at, zone).replace(tzinfo=None)
        # The minutes that the clock shows now or has just skipped; none while it repeats an hour.
        shown = [latest + timedelta(minutes=1 + step) for step in range(int((wall - latest) / timedelta(minutes=1)))]
        if any(cron.fires_on(time) and time.hour in cron.hours and time.minute in cron.minutes for time in shown):
            found.append(at)
        latest = max(latest, wall)
    return found


def _random_field(chance: random.Random, low: int, high: int) -> str:
    first, last = sorted((chance.randint(low, high), chance.randint(low, high)))
    kinds = ("*", f"*/{chance.randint(1, high - low + 1)}", f"{first}", f"{first}-{last}", f"{first}-{last}/2")
    return ",".join(chance.choices(kinds, k=chance.choice((1, 1, 2))))


class Reading(unittest.TestCase):
    def test_numbers_names_ranges_lists_and_steps_are_read(self) -> None:
        cron = parse_cron("*/20,7 1-5/2 1,15 JAN,mar-MAY sat-sun")
        self.assertEqual(cron.minutes, (0, 7, 20, 40))
        self.assertEqual(cron.hours, (1, 3, 5))
        self.assertEqual(cron.days, (1, 15))
        self.assertEqual(cron.months, (1, 3, 4, 5))
        self.assertEqual(cron.weekdays, (0, 6))

    def test_sunday_is_0_and_7(self) -> None:
        self.assertEqual(parse_cron("0 0 * * 0").weekdays, parse_cron("0 0 * * 7").weekdays)
        self.assertEqual(parse_cron("0 0 * * 5-7").weekdays, (0, 5, 6))
        for day in ("0-0", "sun-sun", "7-7", "sun-0", "7-0"):
            self.assertEqual(parse_cron(f"0 0 * * {day}").weekdays, (0,), day)
        self.assertEqual(parse_cron("0 0 * * */2").weekdays, (0, 2, 4, 6))
        for text, way_out in (
            ("0 0 * * sat-mon", "sat-7,0-mon"),
            ("0 22-6 * * *", "22-23,0-6"),
            ("0 0 1 dec-jan *", "dec-12,1-jan"),
        ):
            with self.assertRaisesRegex(OptionsError, f"ranges must ascend: write two ranges, {way_out}"):
                parse_cron(text)
            parse_cron(text.replace(text.split()[{"sat": 4, "22-": 1, "dec": 3}[way_out[:3]]], way_out))

    def test_short_forms_stand_for_their_lines(self) -> None:
        for short, line in (("@hourly", "0 * * * *"), ("@Daily", "0 0 * * *"), ("@yearly", "0 0 1 1 *")):
            self.assertEqual(vars(parse_cron(short)) | {"text": ""}, vars(parse_cron(line)) | {"text": ""})

    def test_an_invalid_line_is_refused_with_its_reason(self) -> None:
        wrong = (
            *(
                "",
                "* * * *",
                "* * * * * *",
                "@reboot",
                "@every 5m",
                "60 * * * *",
                "* 24 * * *",
                "* * 0 * *",
                "* * 32 * *",
            ),
            *("* * * 0 *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "*/61 * * * *", "5/15 * * * *", "9-5 * * * *"),
            *("1,,2 * * * *", "-1 * * * *", "1- * * * *", "1.5 * * * *", "\u0661 * * * *", "x * * * *", "jan * * * *"),
            *("* * * * fri-mon", "? * * * *", "* * L * *", "* * * * 5#2", "1" * 600),
        )
        for text in wrong:
            with self.subTest(text), self.assertRaisesRegex(OptionsError, "cron line"):
                parse_cron(text)

    def test_a_day_that_no_month_has_is_refused(self) -> None:
        for text in ("0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 feb */2"):
            with self.subTest(text), self.assertRaisesRegex(OptionsError, "never fires"):
                parse_cron(text)
        # Each Monday in February: if both day fields are restricted, either one is enough.
        self.assertEqual(_fires("0 0 30 2 mon", "UTC", "2026-01-01", 1), ["2026-02-02 00:00+00:00"])

    def test_an_unknown_time_zone_is_refused(self) -> None:
        for name in ("", "Europe", "Europe/Nowhere", "../../etc/passwd", "/etc/localtime", "UTC\0", "a" * 5000):
            with self.subTest(name[:20]), self.assertRaisesRegex(OptionsError, "time zone .* is unknown"):
                read_zone(name)


class Firing(unittest.TestCase):
    def test_a_skipped_time_fires_at_the_next_minute_that_exists(self) -> None:
        self.assertEqual(
            _fires("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", 2),
            ["2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"],
        )
        self.assertEqual(_fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", 1), ["2026-10-04 02:30+11:00"])
        self.assertEqual(_fires("0 12 30 12 *", "Pacific/Apia", "2011-12-01", 1), ["2011-12-31 00:00+14:00"])

    def test_all_times_of_a_gap_fire_once_together(self) -> None:
        self.assertEqual(
            _fires("*/15 * * * *", "Europe/Berlin", "2026-03-29 01:45", 2),
            ["2026-03-29 03:00+02:00", "2026-03-29 03:15+02:00"],
        )

    def test_a_doubled_time_fires_once(self) -> None:
        self.assertEqual(
            _fires("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", 2),
            ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"],
        )

    def test_a_rare_day_is_found_across_years(self) -> None:
        self.assertEqual(_fires("0 0 29 2 *", "UTC", "2096-03-01", 1), ["2104-02-29 00:00+00:00"])
        self.assertEqual(_fires("0 0 29 2 */7", "UTC", "2096-03-01", 1), ["2128-02-29 00:00+00:00"])

    def test_both_restricted_fields_of_days_fire_on_either(self) -> None:
        self.assertEqual(
            _fires("0 0 13 * fri", "UTC", "2026-12-10", 3),
            ["2026-12-11 00:00+00:00", "2026-12-13 00:00+00:00", "2026-12-18 00:00+00:00"],
        )

    def test_the_end_of_the_calendar_is_an_error_and_no_crash(self) -> None:
        with self.assertRaisesRegex(OptionsError, "again before"):
            next_fire(parse_cron("0 0 1 1 *"), datetime(9998, 6, 1, tzinfo=UTC).timestamp(), UTC)

    def test_any_line_fires_at_the_minute_that_an_exhaustive_search_finds(self) -> None:
        seed = random.randrange(2**32)
        chance, minutes = random.Random(seed), 50 * 60
        for _ in range(sized(3, 8, 3000)):
            zone_name, day = chance.choice(CHANGES)
            zone = read_zone(zone_name)
            fields = [_random_field(chance, *span) for span in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))]
            text = " ".join(fields[:2] + [chance.choice(("*", field)) for field in fields[2:]])
            with self.subTest(text, zone=zone_name, day=day, seed=seed):
                try:
                    cron = parse_cron(text)
                except OptionsError:
                    self.assertNotIn("*", text.split()[2][:1])
                    continue
                middle = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
                begin = middle - 20 * 3600
                expected, at = _searched(cron, zone, begin, minutes), begin - 1
                for fire in expected[:400]:
                    at = next_fire(cron, at, zone)
                    self.assertEqual(at, fire)
                if len(expected) <= 400:
                    self.assertGreaterEqual(next_fire(cron, at, zone), begin + 60 * minutes)


if __name__ == "__main__":
    unittest.main()
