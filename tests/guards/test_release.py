"""Releases: cutting the changelog, and the versions that are refused before anything is written."""

import datetime
import importlib.util
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / ".ci" / "release.py"
spec = importlib.util.spec_from_file_location("release", SOURCE)
assert spec is not None and spec.loader is not None
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

DAY = datetime.date(2026, 12, 24)
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-01-01

- The first things.
"""


class ReleaseTest(unittest.TestCase):
    def test_the_unreleased_entries_become_the_section_of_the_version(self):
        cut = release.with_section(CHANGELOG, "0.2.0", DAY)
        self.assertIn("## [Unreleased]\n\n## [0.2.0] - 2026-12-24\n\n### Added\n\n- A thing.\n\n## [0.1.0]", cut)

    def test_a_changelog_without_unreleased_entries_is_refused(self):
        for text in (release.with_section(CHANGELOG, "0.2.0", DAY), "# Changelog\n"):
            with self.assertRaisesRegex(release.ReleaseError, "no unreleased entries"):
                release.with_section(text, "0.3.0", DAY)

    def test_a_version_that_is_malformed_or_not_newer_is_refused_and_changes_nothing(self):
        before = release.CHANGELOG.read_bytes(), release.VERSION_FILE.read_bytes()
        for version in ("0.2", "v0.2.0", "0.02.0", "0.2.0rc1", release.current_version(), "0.0.9"):
            with self.assertRaisesRegex(release.ReleaseError, "not a version|not newer"):
                release.cut(version, DAY)
        self.assertEqual((release.CHANGELOG.read_bytes(), release.VERSION_FILE.read_bytes()), before)

    def test_the_changelog_can_be_cut_now(self):
        release.with_section(release.CHANGELOG.read_text(encoding="utf-8"), "9.0.0", DAY)


if __name__ == "__main__":
    unittest.main()
