"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
import unittest

from openagentic_sdk.ground.patterns import regex


class RegexTest(unittest.TestCase):
    def test_it_answers_what_a_compiled_one_answers(self) -> None:
        late, made = regex(r"(a+)(?P<b>B)?", re.IGNORECASE), re.compile(r"(a+)(?P<b>B)?", re.IGNORECASE)
        text = "xAab a"
        self.assertEqual(late.findall(text), made.findall(text))
        self.assertEqual([m.span() for m in late.finditer(text)], [m.span() for m in made.finditer(text)])
        self.assertEqual((late.sub("-", text), late.split(text)), (made.sub("-", text), made.split(text)))
        self.assertIsNone(late.fullmatch(text))
        self.assertEqual((late.pattern, late.groupindex, late.flags), (made.pattern, made.groupindex, made.flags))

    def test_it_is_compiled_at_its_first_use(self) -> None:
        late = regex("(")
        with self.assertRaises(re.error):
            late.match("")
