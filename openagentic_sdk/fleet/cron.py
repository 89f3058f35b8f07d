"""Compute when a cron line fires next in a time zone: five fields as in crontab(5), without trying every minute.

A line describes wall-clock times. Times that the clock skips fire once, at the first minute after the gap; times that it
repeats fire only the first time. Use the zone `UTC` to fire at equal intervals.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from ..errors import OptionsError
from ..ground.frozen import frozen

MAX_CHARS = 500
_MINUTE = timedelta(minutes=1)
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES = {
    "month": {name: at for at, name in enumerate(_MONTHS, 1)},
    "day of week": {n: at for at, n in enumerate(_DAYS)},
}
_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# The maximum length of each month.
_LONGEST = {month: monthrange(2000, month)[1] for month in range(1, 13)}
# The end of the calendar: `datetime` ends with the year 9999, and conversion to a zone needs a margin.
_LAST_YEAR = 9998


@frozen
class Cron:
    """A parsed line: the numbers of each field, in order. `weekdays` has 0 for Sunday.

    If `either_day` is true, a day that matches one of the two day fields is enough, as crontab(5) specifies for lines that
    restrict both.
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool

    def fires_on(self, day: datetime) -> bool:
        """Whether the line fires at all on this calendar day."""
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        fits = in_month or in_week if self.either_day else in_month and in_week
        return day.month in self.months and fits


def parse_cron(text: str) -> Cron:
    """Parse `minute hour day-of-month month day-of-week` with `*`, names, ranges, lists and steps, or a word like `@daily`.

    Raises `OptionsError` for anything else, and for a line that can never fire, such as one for 30 February.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise OptionsError(f"cron line {text!r:.100} must be a string of at most {MAX_CHARS} characters")
    words = _SHORT.get(text.strip().lower(), text).split()
    if len(words) != len(_FIELDS):
        raise OptionsError(
            f"cron line {text!r} must have five fields (minute hour day-of-month month day-of-week), or be one of "
            f"{', '.join(_SHORT)}"
        )
    field_values = [_read_field(text, word.lower(), *field) for word, field in zip(words, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = field_values
    # Debian's crontab(5): a field is "restricted" if it does not start with *.
    either_day = not words[2].startswith("*") and not words[4].startswith("*")
    if not either_day and min(days) > max(_LONGEST[month] for month in months):
        raise OptionsError(f"cron line {text!r} never fires: none of its months has a day {min(days)}")
    # Sunday is both 0 and 7.
    weekdays = sorted({day % 7 for day in weekdays})
    return Cron(text, tuple(minutes), tuple(hours), tuple(days), tuple(months), tuple(weekdays), either_day)


def read_zone(name: str) -> ZoneInfo:
    """The time zone with this name in the IANA database. Raises `OptionsError` if this machine does not have it."""
    try:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}", name):
            raise ValueError(name)
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise OptionsError(
            f"time zone {name!r:.100} is unknown on this machine: give a name such as Europe/Berlin or UTC, or install "
            "`tzdata`"
        ) from None


def next_fire(cron: Cron, after: float, zone: tzinfo) -> float:
    """The first time after `after` at which the line fires; both are epoch seconds.

    Raises `OptionsError` if it never fires before the calendar ends.
    """
    for wall in _wall_times(cron, datetime.fromtimestamp(after, zone).replace(tzinfo=None, fold=0)):
        at = _instant(wall, zone)
        if at > after:
            return at
    raise OptionsError(f"cron line {cron.text!r} does not fire again before the year {_LAST_YEAR + 1}")


def _read_field(line: str, word: str, name: str, low: int, high: int) -> list[int]:
    names = _NAMES.get(name, {})
    one = rf"(\d{{1,4}}{''.join('|' + each for each in names)})"
    values: set[int] = set()
    for part in word.split(","):
        match = re.fullmatch(rf"(?:\*|{one}(?:-{one})?)(?:/(\d{{1,4}}))?", part, re.ASCII)
        if not match:
            raise OptionsError(
                f"{part!r} in cron line {line!r} is not a valid {name}: write *, {low}-{high}{', a name' if names else ''}, "
                "a range, or * or a range with a step, such as 10-40/5"
            )
        first, last, step = match.groups()
        begin, end = (low, high) if first is None else (_number(first, names), _number(last or first, names))
        if name == "day of week":
            # * counts each day once, and a range that ends on Sunday ends with the week: fri-sun.
            end = 6 if first is None else 7 if begin and not end else end
        if low <= end < begin <= high:
            raise OptionsError(
                f"{part!r} in cron line {line!r} is not a valid {name}, since ranges must ascend: "
                f"write two ranges, {first}-{high},{low}-{last}"
            )
        if not low <= begin <= end <= high:
            raise OptionsError(
                f"{part!r} in cron line {line!r} is not a valid {name}: give numbers from {low} to {high}"
            )
        if step is not None and first is not None and last is None:
            raise OptionsError(f"the step of {part!r} in cron line {line!r} needs a range: write {first}-{high}/{step}")
        if not 1 <= int(step or 1) <= high - low + 1:
            raise OptionsError(f"the step of {part!r} in cron line {line!r} must be from 1 to {high - low + 1}")
        values.update(range(begin, end + 1, int(step or 1)))
    return sorted(values)


def _number(word: str, names: dict[str, int]) -> int:
    return names[word] if word in names else int(word)


def _wall_times(cron: Cron, after: datetime) -> Iterator[datetime]:
    """Yield the wall-clock times at which the line fires, from the minute of `after` on; step by day, not by minute."""
    start = after.replace(second=0, microsecond=0)
    for year in range(start.year, _LAST_YEAR + 1):
        for month in cron.months:
            if (year, month) < (start.year, start.month):
                continue
            for number in range(1, monthrange(year, month)[1] + 1):
                day = start.replace(year=year, month=month, day=number, hour=0, minute=0)
                if day.date() < start.date() or not cron.fires_on(day):
                    continue
                for hour in cron.hours:
                    for minute in cron.minutes:
                        wall = day.replace(hour=hour, minute=minute)
                        if wall >= start:
                            yield wall


def _instant(wall: datetime, zone: tzinfo) -> float:
    """The first instant with this wall-clock time; if the clock skips it, the first whole minute after the gap."""
    at = wall.replace(tzinfo=zone).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return at.timestamp()
    # The clock moves forward at a second between the results with the offsets before and after the gap.
    before, after = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), at
    offset = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        before, after = (before, middle) if middle.astimezone(zone).utcoffset() == offset else (middle, after)
    after = after.replace(microsecond=0)
    local = after.astimezone(zone)
    seconds = local.second
    return (after + (_MINUTE - timedelta(seconds=seconds) if seconds else timedelta())).timestamp()
