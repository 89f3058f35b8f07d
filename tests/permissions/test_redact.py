"""Secrets are masked in every encoding in which they occur, and nothing else is."""

from __future__ import annotations

import base64
import json
import re
import time
import unittest
from pathlib import Path
from urllib.parse import quote

from openagentic_sdk.ground.text import safe_cut
from openagentic_sdk.permissions.redact import Redactor, secrets_of
from openagentic_sdk.tools.shell import secret_shapes
from tests.size import full_size, sized

from .more_secret_shapes import LOOK_ALIKES, MORE_SHAPES
from .secret_shapes import SHAPES

SECRET = 'p@ss"word/ä 12345'


class DocumentedShapes(unittest.TestCase):
    def test_every_shape_that_a_vendor_documents_is_masked(self) -> None:
        for text, secret in SHAPES:
            with self.subTest(text):
                self.assertNotIn(secret, Redactor()(text))

    def test_credentials_of_further_vendors_and_formats_are_masked(self) -> None:
        for text, secret in MORE_SHAPES:
            with self.subTest(text[:60]):
                self.assertNotIn(secret, Redactor()(text))

    def test_text_that_only_looks_like_a_credential_stays(self) -> None:
        for text in LOOK_ALIKES:
            with self.subTest(text[:60]):
                self.assertEqual(Redactor()(text), text)

    def test_code_and_prose_about_secrets_stay_unchanged(self) -> None:
        for text in (
            "password = get_password(user)",
            "def f(token: str, api_key: str | None = None) -> None:",
            'api_key_env = "OPENAI_API_KEY"',
            '{"type": "password", "token": "string", "max_tokens": 4096}',
            "password: use at least eight characters",
            "Basic authentication sends the password with each request.",
            "DB_PASSWORD=$DB_PASSWORD TOKEN_FILE=/run/secrets/token",
            "client_secret=self.client_secret, token=token",
            "https://docs.example.com/secrets?page=token",
            "AUTHOR=somebody-else KEYBOARD=german-nodeadkeys",
        ):
            with self.subTest(text):
                self.assertEqual(Redactor()(text), text)

    @full_size
    def test_the_pages_and_code_of_this_package_lose_nothing(self) -> None:
        root = Path(__file__).parents[2]
        for folder in ("docs", "openagentic_sdk/permissions", "openagentic_sdk/tools", "openagentic_sdk/server"):
            for path in sorted(root.joinpath(folder).rglob("*.[mp][dy]")):
                redactor = Redactor()
                redactor(path.read_text(encoding="utf-8"))
                self.assertEqual(redactor.counts, {}, path)


class LongTexts(unittest.TestCase):
    def test_segments_contain_the_same_matches_as_the_whole_text(self) -> None:
        token, key = "eyJ" + "a1" * 40 + ".eyJ" + "b2" * 40 + ".c3" * 20, "-----BEGIN PRIVATE KEY-----" + "x" * 900
        text = f"Bearer {token}\n{key}-----END PRIVATE KEY-----\nDB_PASSWORD=hunter2hunter2\n" * 3 + key
        for shape in secret_shapes.SHAPES:
            whole = [match.span() for match in shape.pattern.finditer(text)]
            for segment in (137, 333):
                with self.subTest(shape.name, segment=segment):
                    found = secret_shapes.find_in_segments(shape.pattern, text, segment, 400)
                    self.assertEqual([match.span() for match in found], whole)

    def test_a_secret_across_the_segments_of_a_long_text_is_masked(self) -> None:
        text = Redactor()(f"{'x ' * (64 * 1024 - 10)}ghp_{'a1' * 20} {'y ' * 20_000}ghp_{'b2' * 20}")
        self.assertEqual(text.count("[masked: GitHub token]"), 2)


class KnownValues(unittest.TestCase):
    def test_a_text_that_one_redactor_left_unchanged_is_masked_by_the_next_with_more_secrets(self) -> None:
        text = "the door opens with green-elephants-7 today"
        for _ in range(2):
            self.assertEqual(Redactor({"OTHER": "another value"})(text), text)
            self.assertEqual(Redactor({"DOOR": "green-elephants-7"})(text), "the door opens with [masked: DOOR] today")
            self.assertEqual(Redactor(shapes=False)("Bearer " + "a1" * 20), "Bearer " + "a1" * 20)
            self.assertEqual(Redactor()("Bearer " + "a1" * 20), "Bearer [masked: bearer token]")

    def test_texts_without_secrets_are_kept_up_to_a_bound(self) -> None:
        redactor = Redactor({"DOOR": "green-elephants-8"})
        for number in range(2000):
            redactor(f"text number {number}")
        redactor("long " * 10_000)
        self.assertLessEqual(len(redactor._clean), 512)
        self.assertLess(sum(map(len, redactor._clean)), 50_000)

    def test_a_value_is_masked_in_upper_case_hex_twice_in_base64_and_in_any_percent_escapes(self) -> None:
        twice = base64.b64encode(base64.b64encode(b"me:" + SECRET.encode())).decode()
        quoted = quote(SECRET, safe="")
        lower = re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
        for text in (SECRET.encode().hex().upper(), twice, lower, quote(quoted), SECRET.replace("/", "\\/")):
            with self.subTest(text):
                self.assertIn("[masked: DB_PASSWORD]", Redactor({"DB_PASSWORD": SECRET})(text))

    def test_a_value_is_masked_in_every_form(self) -> None:
        forms = {
            "as it is": SECRET,
            "in JSON": json.dumps({"x": SECRET}),
            "in an address": "https://x/?k=" + quote(SECRET, safe=""),
            "in hex": SECRET.encode().hex(),
        }
        for offset in range(4):
            text = b"x" * offset + SECRET.encode() + b"tail"
            forms[f"in base64 at {offset}"] = base64.b64encode(text).decode()
            forms[f"in urlsafe base64 at {offset}"] = base64.urlsafe_b64encode(text).decode()
        for about, text in forms.items():
            with self.subTest(about):
                self.assertIn("[masked: DB_PASSWORD]", Redactor({"DB_PASSWORD": SECRET})(text))

    def test_the_mask_names_the_kind_of_secret_and_the_count_how_often(self) -> None:
        redactor = Redactor({"MY_TOKEN": "abcdefgh1"})
        self.assertEqual(redactor("a abcdefgh1 b abcdefgh1"), "a [masked: MY_TOKEN] b [masked: MY_TOKEN]")
        self.assertEqual(redactor.counts, {"MY_TOKEN": 2})

    def test_a_secret_inside_another_does_not_show_the_rest(self) -> None:
        redactor = Redactor({"A_KEY": "abcdefgh", "B_KEY": "abcdefgh-and-more"})
        self.assertEqual(redactor("x abcdefgh-and-more y"), "x [masked: B_KEY] y")

    def test_no_cut_splits_a_value_wherever_it_begins_again(self) -> None:
        redactor = Redactor({"TOKEN": "abababab", "KEY": "hunter2-hunter2"}, shapes=False)
        text = "key hunter2-hunter2 twice ababababab end hunter2-hunter2"
        self.assertEqual(sorted(redactor.spans(text)), [(4, 19), (26, 34), (28, 36), (41, 56)])
        for forward in (False, True):
            cuts = {safe_cut(text, at, redactor, forward=forward) for at in range(len(text) + 1)}
            self.assertEqual(cuts, {*range(5), *range(19, 27), *range(36, 42), 56})

    def test_short_values_are_left_alone(self) -> None:
        self.assertEqual(Redactor({"A_KEY": "true"})("true enough"), "true enough")

    def test_values_of_json_are_masked_to_any_depth(self) -> None:
        redactor = Redactor({"A_KEY": "abcdefgh"})
        value = {"stdout": ["abcdefgh", 1, None, {"x": "abcdefgh"}]}
        self.assertEqual(redactor.value(value), {"stdout": ["[masked: A_KEY]", 1, None, {"x": "[masked: A_KEY]"}]})

    def test_which_variables_hold_secrets(self) -> None:
        environment = {
            "OPENAI_API_KEY": "x1",
            "TAVILY_API_KEY": "x2",
            "GH_TOKEN": "x3",
            "db_password": "x4",
            "AWS_SECRET_ACCESS_KEY": "x5",
            "DATABASE_URL": "postgres://me:hunter22@db/x",
            "PATH": "/bin",
            "PWD": "/work",
            "HOME": "/root",
            "KEYBOARD": "de",
            "SSH_AUTH_SOCK": "/tmp/x",
            "TOKENIZERS_PARALLELISM": "false",
            "GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json",
        }
        expected = {
            "OPENAI_API_KEY",
            "TAVILY_API_KEY",
            "GH_TOKEN",
            "db_password",
            "AWS_SECRET_ACCESS_KEY",
            "DATABASE_URL",
        }
        self.assertEqual(set(secrets_of(environment)), expected)
        self.assertEqual(secrets_of(environment)["DATABASE_URL"], "hunter22")


class Shapes(unittest.TestCase):
    # Concatenated here, so that no secret scanner reports this file.
    tokens = (
        *("sk-" + "a1B2" * 12, "sk-proj-" + "a1B2_" * 10, "sk-ant-" + "api03-" + "a1B2" * 10, "gh" + "p_" + "a1B2" * 9),
        *("github" + "_pat_" + "a1B2_" * 12, "glpat" + "-" + "a1B2" * 5, "AKIA" + "A1B2" * 4, "AIza" + "a1B2x" * 7),
        *(
            "xox" + "b-" + "123456789-abc",
            "sk_" + "live_" + "a1B2" * 6,
            "hf" + "_" + "a1B2" * 9,
            "npm" + "_" + "a1B2" * 9,
        ),
        *(
            "tvly" + "-" + "a1B2" * 6,
            "eyJ" + "hbGciOi" * 2 + ".eyJ" + "zdWIiOi" * 2 + ".a1B2c3D4e5",
            "SG" + "." + "a1B2" * 5 + "." + "a1B2" * 5,
        ),
        "-----BEGIN RSA " + "PRIVATE KEY-----\nabc\n-----END RSA " + "PRIVATE KEY-----",
    )

    def test_tokens_are_recognized_by_their_shape(self) -> None:
        for token in self.tokens:
            with self.subTest(token[:8]):
                shown = Redactor()(f"key: {token} end")
                self.assertRegex(shown, r"^key: \[masked: [\w ]+\] end$")

    def test_only_the_secret_part_of_a_header_or_address_is_masked(self) -> None:
        redactor = Redactor()
        self.assertEqual(
            redactor("Authorization: Bearer abcdefghij0123456789"), "Authorization: Bearer [masked: bearer token]"
        )
        self.assertEqual(redactor("postgres://me:hunter22@db/x"), "postgres://me:[masked: password in an address]@db/x")

    def test_plain_text_digests_and_names_stay(self) -> None:
        texts = (
            *(
                "a" * 64,
                "0123456789abcdef" * 4,
                "task-list",
                "risk-free",
                "sk-",
                "https://example.com:80/x",
                "eyJ",
                "AKIA",
            ),
            *(
                "the bearer of news",
                "git@github.com:x/y",
                "hf_transformers",
                "npm_config_cache",
                "call_abc123",
                "blob:" + "a1" * 32,
            ),
        )
        for text in texts:
            with self.subTest(text):
                self.assertEqual(Redactor()(text), text)

    def test_masking_twice_changes_nothing_more(self) -> None:
        redactor = Redactor({"A_KEY": "abcdefgh"})
        for text in (*self.tokens, "Bearer abcdefghij0123456789", "abcdefgh", "x://u:pass@h"):
            once = redactor(text)
            self.assertEqual(redactor(once), once)

    @full_size
    def test_a_megabyte_of_text_takes_no_time(self) -> None:
        redactor = Redactor({f"N{n}_KEY": f"secret-value-{n}" for n in range(20)})
        for piece in ("sk-", "a", "://a:", "-----BEGIN PRIVATE KEY-----"):
            text = piece * (sized(250_000, 1_000_000, 1_000_000) // len(piece))
            began = time.perf_counter()
            redactor(text)
            self.assertLess(time.perf_counter() - began, 60)


if __name__ == "__main__":
    unittest.main()
