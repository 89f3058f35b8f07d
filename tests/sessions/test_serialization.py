"""Events to JSON and back."""

import asyncio
import json
import unittest
from copy import deepcopy
from dataclasses import asdict, fields, replace

from openagentic_sdk.errors import InvalidEventError, UnknownEventTypeError
from openagentic_sdk.events import (
    EVENT_CLASSES,
    ModelContext,
    ModelRequest,
    SessionMeta,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.serialization import (
    _build,
    _shape,
    dumps_event,
    dumps_fields,
    dumps_json,
    dumps_time,
    event_from_dict,
    event_to_dict,
    loads_event,
    written,
)
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages

SAMPLES = {
    "str": "text", "int": 3, "float": 1.5, "bool": True, "Any": {"x": [1, None]},
    "Mapping[str, Any]": {"k": "v"}, "Sequence[str]": ["a"], "Sequence[Mapping[str, Any]]": [{"k": 1}],
    "StopReason": "end", "Outcome": "ok", "Mode": "plan", "Effect": "read", "QuestionKind": "permission",
}  # fmt: skip


def sample(cls, optional):
    """An event with every required field, or with every field."""
    values = {}
    for field in fields(cls):
        kind = str(field.type).removesuffix(" | None")
        required = (
            field.default.__class__.__name__ == "_MISSING_TYPE"
            and field.default_factory.__class__.__name__ == "_MISSING_TYPE"
        )
        if required or optional:
            values[field.name] = SAMPLES[kind]
    return cls(**values)


class RoundTripTest(unittest.TestCase):
    def test_every_event_comes_back_equal_with_and_without_its_optional_fields(self):
        for event_type, cls in EVENT_CLASSES.items():
            for optional in (False, True):
                event = sample(cls, optional)
                with self.subTest(type=event_type, optional=optional):
                    self.assertEqual(loads_event(dumps_event(event)), event)
                    self.assertEqual(event_to_dict(loads_event(dumps_event(event))), event_to_dict(event))

    def test_an_event_written_piece_by_piece_is_the_same_text_as_its_dict(self):
        for event_type, cls in EVENT_CLASSES.items():
            for optional in (False, True):
                event = sample(cls, optional)
                fields_alone = {k: v for k, v in event_to_dict(event).items() if k not in ("seq", "ts")}
                with self.subTest(type=event_type, optional=optional):
                    self.assertEqual("{" + dumps_fields(event) + "}", dumps_json(fields_alone))

    def test_the_quick_way_and_the_careful_way_give_the_same_event(self):
        for event_type, cls in EVENT_CLASSES.items():
            data = json.loads(dumps_event(sample(cls, True)))
            self.assertEqual(event_from_dict(data), _build(_shape(event_type), data))

    def test_hostile_text_is_returned_unchanged_and_the_line_is_ascii(self):
        for text in ("\ud800", "\x00", "\u2028\u2029\x85", "\U0001f600", "a\nb\r", "x" * 2_000_000):
            line = dumps_event(UserMessage(text))
            self.assertTrue(line.isascii())
            self.assertNotIn("\n", line)
            self.assertEqual(loads_event(line).text, text)

    def test_definitions_that_are_written_again_keep_their_text_and_any_change_of_them_makes_another(self):
        one = [{"name": "Read", "parameters": {"b": 1, "a": [True, "x", None]}}]
        texts = {written(one).text, written(deepcopy(one)).text}
        self.assertEqual(texts, {dumps_json(one)})
        self.assertEqual(written(one).canonical, json.dumps(one, sort_keys=True, separators=(",", ":")))
        for path, value in (("b", True), ("b", 1.0), ("a", [1, "x", None]), ("a", (True, "x"))):
            other = deepcopy(one)
            other[0]["parameters"][path] = value
            with self.subTest(path=path, value=value):
                self.assertEqual(written(other).text, dumps_json(other))
        reordered = [{"name": "Read", "parameters": {"a": [True, "x", None], "b": 1}}]
        self.assertEqual(written(reordered).text, dumps_json(reordered))
        one[0]["parameters"]["b"] = 2
        self.assertEqual(written(one).text, dumps_json(one))

    def test_definitions_that_cannot_be_kept_are_written_or_refused_like_any_list(self):
        class Text(str):
            pass

        for value in (Text("x"), {1, 2}, float("nan"), b"x", object()):
            self.assertEqual(type(written([value])), list)
        line = dumps_fields(ModelContext("m", "p", "", written([{"name": "Read"}]), []))
        self.assertEqual(line, dumps_fields(ModelContext("m", "p", "", [{"name": "Read"}], [])))

    def test_unknown_fields_are_ignored(self):
        self.assertEqual(loads_event('{"type":"user.message","text":"hi","later":1}'), UserMessage("hi"))

    def test_unknown_types_are_kept_by_the_tolerant_reader_and_raised_by_the_strict_one(self):
        line = '{"type":"later.thing","seq":4,"x":[1]}'
        with self.assertRaises(UnknownEventTypeError):
            loads_event(line)
        kept = loads_event(line, strict=False)
        self.assertIsInstance(kept, UnknownEvent)
        self.assertEqual(kept, UnknownEvent({**kept.data}))
        self.assertNotEqual(kept, UnknownEvent({**kept.data, "more": 1}))
        self.assertEqual((kept.type, kept.seq, json.loads(dumps_event(kept))), ("later.thing", 4, json.loads(line)))

    def test_an_invalid_event_is_refused_with_its_field(self):
        cases = [
            ("", "not JSON"), ("[]", "JSON object"), ("{}", "type"), ('{"type":5}', "type"),
            ('{"type":"user.message"}', "'text' is missing"), ('{"type":"user.message","text":5}', "must be str"),
            ('{"type":"tool.use","tool_use_id":"a","name":"b","input":[]}', "must be dict"),
            ('{"type":"user.message","text":"x","seq":0}', "seq"),
            ('{"type":"user.message","text":"x","seq":true}', "seq"),
            ('{"type":"user.message","text":"x","ts":"now"}', "ts"),
            ('{"type":"user.message","text":"x","ts":NaN}', "not JSON"),
            ('{"type":"user.message","text":"x","parent_tool_use_id":["a"]}', "'parent_tool_use_id' must be str"),
            ('{"type":"user.message","text":"x","agent_name":{}}', "'agent_name' must be str"),
            ('{"type":"user.message","text":"x","mac":1}', "'mac' must be str"),
            (f'{{"type":"user.message","text":"x","ts":1{"0" * 400}}}', "'ts' must be"),
            (f'{{"type":"model.response","step":1,"attempt":1,"cost_usd":-1{"0" * 400}}}', "'cost_usd' must be"),
            ("[" * 100_000, "not JSON"),
            ('{"type":"todo.updated","todos":[[]]}', "'todos' must be a list of dict"),
            ('{"type":"session.meta","tags":["a",1]}', "'tags' must be a list of str"),
        ]  # fmt: skip
        for line, word in cases:
            with self.subTest(line=line[:60]), self.assertRaisesRegex(InvalidEventError, word):
                loads_event(line)

    def test_values_that_no_reader_accepts_are_refused_when_written(self):
        for event, name in (
            (UserMessage(5), "text"),
            (UserMessage(None), "text"),
            (UserMessage("a", request_id=5), "request_id"),
            (ToolUse("c", "n", []), "input"),
            (ModelRequest(True, 1, "", 1), "step"),
            (SessionMeta(tags="tag"), "tags"),
            (SessionMeta(tags=("a", 1)), "tags"),
            (UserMessage("a", attachments=[True]), "attachments"),
        ):
            with (
                self.subTest(event),
                self.assertRaisesRegex(InvalidEventError, f"^{event.type}: field '{name}' must be"),
            ):
                dumps_fields(event)

    def test_a_reader_accepts_every_line_that_is_written_whatever_is_in_its_fields(self):
        read = refused = 0
        for cls in EVENT_CLASSES.values():
            event = replace(sample(cls, True), seq=1, ts=1.5)
            for field in fields(cls):
                for value in (None, True, 7, 10**400, 1e305, "x", ["x"]):
                    changed = replace(event, **{field.name: value})
                    try:
                        line = f'{{"seq":1,"ts":{dumps_time(changed.ts)},{dumps_fields(changed)}}}'
                    except InvalidEventError:
                        refused += 1
                        continue
                    loads_event(line)
                    read += 1
        self.assertGreater(min(read, refused), 1000)

    def test_elements_of_another_type_are_left_out_by_the_tolerant_reader(self):
        for misfit in (None, 5, True, []):
            for line, left in (
                ({"type": "todo.updated", "todos": [{"content": "a"}, misfit]}, [{"content": "a"}]),
                ({"type": "session.meta", "tags": [misfit, "a"]}, ["a"]),
            ):
                event = loads_event(json.dumps({**line, "seq": 1, "ts": 1.0}), strict=False)
                self.assertEqual([left], [value for value in event_to_dict(event).values() if isinstance(value, list)])

    def test_a_list_that_carries_its_json_is_copied_with_it(self):
        values = [{"name": "read"}]
        context = replace(sample(ModelContext, True), tools=written(values))
        copied = asdict(context)
        self.assertEqual((copied["tools"], json.dumps(copied["tools"])), (values, '[{"name": "read"}]'))
        self.assertIn('"tools":[{"name":"read"}]', dumps_fields(replace(context, tools=copied["tools"])))
        self.assertEqual(deepcopy(context), context)

    def test_a_dict_in_the_place_of_an_event_is_refused_by_name_and_the_reverse_too(self):
        event = UserMessage("Hi.")
        data = event_to_dict(event)
        store = MemorySessionStore()
        session_id = store.create_session()
        for use in (
            event_to_dict,
            dumps_event,
            dumps_fields,
            lambda wrong: store.append_event(session_id, wrong),
            lambda wrong: rebuild_messages([wrong]),
            lambda wrong: asyncio.run(replay_events([wrong])),
        ):
            for wrong in (data, None, "x"):
                with self.assertRaisesRegex(
                    InvalidEventError, "an event must be an Event object, as from event_from_dict"
                ):
                    use(wrong)
        for wrong in (event, None, "x", [data]):
            with self.assertRaisesRegex(InvalidEventError, "an event is a JSON object, not "):
                event_from_dict(wrong)
        for wrong in (event, None, 3):
            with self.assertRaisesRegex(InvalidEventError, "this is not JSON: "):
                loads_event(wrong)
        self.assertEqual(store.read_events(session_id), [])

    def test_a_value_without_a_json_form_is_refused_when_it_is_written(self):
        for value in (float("nan"), float("inf"), {1, 2}, object()):
            with self.assertRaises(InvalidEventError):
                dumps_event(ToolUse("a", "b", {"x": value}))


if __name__ == "__main__":
    unittest.main()
