"""Rebuilding messages from events."""

import json
import random
import unittest
from dataclasses import replace

from openagentic_sdk.events import (
    AssistantMessage,
    ContextCleared,
    ModelRequest,
    Result,
    SessionCompacted,
    SessionRewound,
    SystemInit,
    ToolResult,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.parts.record.folds.explain import origins
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import (
    NO_RESULT,
    Conversation,
    fit_rewritten,
    rebuild_messages,
    standing_events,
)
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.testing.validity import find_fault
from tests.size import sized


def numbered(*events):
    return [replace(event, seq=seq) for seq, event in enumerate(events, 1)]


def turn(step, text, *calls):
    """One answer with its calls and their results, as the runtime stores them."""
    events = [ModelRequest(step, 1, "0" * 64, 0)]
    if text or not calls:
        events.append(AssistantMessage(text))
    events += [ToolUse(call, "Read", {"file_path": call}) for call in calls]
    events += [ToolResult(call, {"content": call}) for call in calls]
    return events


class RebuildTest(unittest.TestCase):
    def test_text_beside_calls_stays_in_one_message_with_its_results_after_it(self):
        messages = rebuild_messages(numbered(UserMessage("hi"), *turn(1, "Looking.", "a", "b"), *turn(2, "Done.")))
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool", "tool", "assistant"])
        self.assertEqual(messages[1]["content"], "Looking.")
        self.assertEqual([call["id"] for call in messages[1]["tool_calls"]], ["a", "b"])
        self.assertEqual([m["tool_call_id"] for m in messages[2:4]], ["a", "b"])

    def test_results_follow_the_order_of_the_calls_whatever_their_order_in_the_log(self):
        events = numbered(
            UserMessage("hi"), ToolUse("a", "R", {}), ToolUse("b", "R", {}), ToolResult("b", 2), ToolResult("a", 1)
        )
        self.assertEqual([m.get("content") for m in rebuild_messages(events)[2:]], ["1", "2"])

    def test_a_call_without_a_result_gets_one_that_states_it_is_missing(self):
        messages = rebuild_messages(numbered(UserMessage("hi"), ToolUse("a", "R", {}), UserMessage("and?")))
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool", "user"])
        self.assertEqual(messages[2]["content"], NO_RESULT)

    def test_each_result_names_the_event_that_it_comes_from(self):
        uses = [ToolUse(call, "Read", {}) for call in ("a", "b", "c")]
        conversation = Conversation()
        for event in numbered(UserMessage("hi"), AssistantMessage("x"), *uses, ToolResult("b", 2), ToolResult("a", 1)):
            conversation.apply(event)
        self.assertEqual(
            [(origin.first_seq, origin.last_seq, origin.kind) for origin in origins(conversation)],
            [
                (1, 1, "prompt"),
                (2, 5, "answer"),
                (7, 7, "result of Read"),
                (6, 6, "result of Read"),
                (0, 0, "no result of Read"),
            ],
        )

    def test_orphan_and_second_results_are_left_out(self):
        events = numbered(
            ToolResult("x", 1), UserMessage("hi"), ToolUse("a", "R", {}), ToolResult("a", 1), ToolResult("a", 2)
        )
        messages = rebuild_messages(events)
        self.assertIsNone(find_fault(messages))
        self.assertEqual(messages[-1]["content"], "1")

    def test_an_error_result_contains_its_kind_and_message(self):
        result = ToolResult("a", is_error=True, error_type="ToolInputError", error_message="no such file")
        messages = rebuild_messages(numbered(UserMessage("hi"), ToolUse("a", "R", {}), result))
        self.assertEqual(messages[-1]["content"], "Error (ToolInputError): no such file")

    def test_lone_surrogates_become_replacement_characters_and_pairs_stay(self):
        messages = rebuild_messages(numbered(UserMessage("a\udcff \ud83d\ude00"), ToolUse("c", "R", {"k": "\ud800"})))
        self.assertIsNone(find_fault(messages))
        self.assertEqual(messages[0]["content"], "a\ufffd \U0001f600")

    def test_vendor_fields_go_back_to_the_same_provider_only(self):
        message = AssistantMessage("x", provider="deepseek", extras={"reasoning_content": "because"})
        events = numbered(UserMessage("hi"), message)
        self.assertNotIn("reasoning_content", rebuild_messages(events)[1])
        self.assertEqual(rebuild_messages(events, provider="deepseek")[1]["reasoning_content"], "because")

    def test_an_image_result_is_shown_in_a_user_message_after_all_results(self):
        for fields, media_type in ({"media_type": "image/jpeg"}, "image/jpeg"), ({}, "image/png"):
            image = ToolResult("a", {"type": "image", "data": "QUJD", **fields})
            events = numbered(
                UserMessage("hi"), ToolUse("a", "R", {}), ToolUse("b", "R", {}), image, ToolResult("b", 1)
            )
            messages = rebuild_messages(events)
            self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool", "tool", "user"])
            self.assertEqual(messages[-1]["content"][0]["image_url"]["url"], f"data:{media_type};base64,QUJD")
            self.assertNotIn("QUJD", messages[2]["content"])

    def test_attachments_of_a_result_are_announced_below_its_text_until_the_endpoint_refuses_them(self):
        names = ("a.png", "b.png")
        parts = [
            {"type": "image", "name": name, "media_type": "image/png", "size": 1234, "sha256": name} for name in names
        ]
        for text in ("Seen.", ""):
            log = [UserMessage("hi"), ToolUse("a", "R", {}), ToolResult("a", text, attachments=parts)]
            *_, answer, pictures = rebuild_messages(numbered(*log))
            notes = [f"[image {name}, image/png, 1,234 bytes]" for name in names]
            lines = [text] if text else []
            self.assertEqual(answer["content"], "\n".join([*lines, *(f"{note} follows below" for note in notes)]))
            self.assertEqual([part.get("sha256") for part in pictures["content"]][-2:], [*names])
            refusal = Result("", "s", "error", error_type="ProviderHTTPError")
            answer = rebuild_messages(numbered(*log, refusal))[-1]
            refused = [f"{note} was refused and is left out" for note in notes]
            self.assertEqual((answer["role"], answer["content"]), ("tool", "\n".join([text, *refused])))

    def test_a_rewind_undoes_each_change_of_the_view_after_it_and_no_other(self):
        calls = [event for name in "abc" for event in (ToolUse(name, "R", {}), ToolResult(name, f"output {name}"))]
        kept = {"sha256": "0" * 64, "bytes": 8}
        cleared = [ContextCleared({name: kept}) for name in "abc"]
        for behind in range(4):
            events = numbered(UserMessage("hi"), *calls, *cleared, SessionRewound(to_seq=7 + behind))
            shown = [m["content"] for m in rebuild_messages(events) if m["role"] == "tool"]
            self.assertEqual([text.startswith("output") for text in shown], [n >= behind for n in range(3)])

    def test_a_rewind_to_a_negative_event_undoes_everything(self):
        log = numbered(UserMessage("hi"), AssistantMessage("yes"), SessionRewound(to_seq=-1), UserMessage("again"))
        self.assertEqual([message["content"] for message in rebuild_messages(log)], ["again"])
        store = MemorySessionStore()
        name = store.create_session()
        for event in log:
            store.append_event(name, replace(event, seq=None))
        view, _ = load_view(store, name, ())  # which once read such a log for ever
        self.assertEqual(len(view.conversation.messages()), 1)

    def test_a_record_of_a_cleared_output_may_be_anything_in_a_log_from_elsewhere(self):
        for record in ([], "x", 5, True, {"bytes": {}, "sha256": []}):
            log = numbered(
                UserMessage("hi"), ToolUse("a", "R", {}), ToolResult("a", "long"), ContextCleared({"a": record})
            )
            self.assertIn("was cleared", rebuild_messages(log)[-1]["content"])

    def test_a_log_of_an_older_tool_that_alternates_calls_and_results_is_valid(self):
        events = [UserMessage("hi")]
        for name in "abc":
            events += [ToolUse(name, "R", {}), ToolResult(name, name)]
        self.assertIsNone(find_fault(rebuild_messages(events)))


class CutTest(unittest.TestCase):
    def setUp(self):
        self.events = numbered(
            UserMessage("one"), *turn(1, "first"), UserMessage("two"), *turn(2, "", "a"), *turn(3, "second")
        )

    def test_no_limit_keeps_everything(self):
        self.assertEqual(len(rebuild_messages(self.events)), 6)

    def test_a_limit_that_everything_just_fits_into_removes_nothing(self):
        one, first, two, call, result, second = rebuild_messages(self.events)
        size = sum(len(json.dumps(block)) for block in ([one], [first], [two], [call, result], [second]))
        fold = Conversation()
        for event in self.events:
            fold.apply(event)
        self.assertEqual((fold.cut_seq(6, None), fold.cut_seq(5, None)), (None, 3))
        self.assertEqual((fold.cut_seq(None, size), fold.cut_seq(None, size - 1)), (None, 3))
        self.assertEqual((fold.cut_seq(6, size), fold.cut_seq(5, size), fold.cut_seq(6, size - 1)), (None, 3, 3))

    def test_a_cut_inside_of_a_turn_keeps_the_prompt_that_began_it(self):
        for prompts in (["one"], ["one", "two", "three"]):
            events = numbered(*map(UserMessage, prompts), *turn(1, "", "a"), *turn(2, "", "b"), *turn(3, "done"))
            messages = rebuild_messages(events, max_events=4)
            self.assertEqual((messages[0]["role"], messages[0]["content"]), ("user", prompts[-1]))

    def test_max_events_keeps_the_newest_whole_blocks(self):
        messages = rebuild_messages(self.events, max_events=4)
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool", "assistant"])
        self.assertEqual(messages[0]["content"], "two")

    def test_the_prompt_of_a_kept_tool_loop_stays_with_it(self):
        messages = rebuild_messages(self.events, max_events=3)
        self.assertEqual(messages[0], {"role": "user", "content": "two"})
        self.assertIsNone(find_fault(messages))

    def test_the_newest_block_stays_even_when_it_is_too_large(self):
        self.assertEqual(rebuild_messages(self.events, max_bytes=1)[-1]["content"], "second")

    def test_a_cut_recorded_at_resume_gives_the_same_messages(self):
        fold = Conversation()
        for event in self.events:
            fold.apply(event)
        first = fold.cut_seq(4, None)
        init = SystemInit("s", "/", "0", messages_from_seq=first, seq=len(self.events) + 1)
        self.assertEqual(rebuild_messages([*self.events, init]), rebuild_messages(self.events, max_events=4))


class OperationsTest(unittest.TestCase):
    def test_compaction_replaces_the_range_and_keeps_what_follows(self):
        events = [UserMessage("one"), *turn(1, "first"), UserMessage("two"), *turn(2, "second")]
        messages = rebuild_messages(numbered(*events, SessionCompacted(3, "they said one"), UserMessage("three")))
        self.assertIn("they said one", messages[0]["content"])
        self.assertEqual([m["content"] for m in messages[1:]], ["two", "second", "three"])

    def test_a_result_after_a_rewind_is_that_of_the_call_in_view(self):
        call = ToolUse("call_1", "Read", {})  # some models restart their call numbering, so that one id occurs twice
        events = numbered(
            UserMessage("hi"), call, UserMessage("again"), call, SessionRewound(to_seq=3), ToolResult("call_1", "text")
        )
        self.assertEqual([m["content"] for m in rebuild_messages(events)], ["hi", None, "text", "again"])
        self.assertEqual(rebuild_messages(events), rebuild_messages(standing_events(events)))

    def test_a_rewind_undoes_what_followed_and_a_compaction_with_it(self):
        events = [UserMessage("one"), *turn(1, "first"), SessionCompacted(3, "short"), UserMessage("two")]
        messages = rebuild_messages(numbered(*events, SessionRewound(3), UserMessage("other")))
        self.assertEqual([m["content"] for m in messages], ["one", "first", "other"])


class RewrittenTest(unittest.TestCase):
    def test_bound_reasoning_is_omitted_from_the_first_change_on_and_kept_before_it(self):
        thinking = {"role": "assistant", "anthropic_content": [{"type": "thinking"}, {"type": "text", "text": "Hm."}]}
        bare = {**thinking, "anthropic_content": thinking["anthropic_content"][1:]}
        said, other = {"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}
        own = [said, thinking, said, thinking]
        for rewritten, expected in (
            (own, own),
            ([said, thinking, other, thinking], [said, thinking, other, bare]),
            ([other, thinking, said, thinking], [other, bare, said, bare]),
            ([*own, said, thinking], [*own, said, bare]),
            (own[:2], own[:2]),
            ([], []),
        ):
            with self.subTest(rewritten=rewritten):
                self.assertEqual(fit_rewritten(rewritten, own, "claude-opus-5-1"), expected)
                self.assertEqual(fit_rewritten(rewritten, own, "claude-opus-4-7"), rewritten, "bound to nothing")


class EveryPrefixTest(unittest.TestCase):
    def test_every_prefix_of_random_logs_is_valid_and_extends_the_one_before(self):
        rng = random.Random(20261121)
        for _ in range(sized(20, 60, 1500)):
            events = numbered(*random_log(rng))
            fold = Conversation()
            sent = []
            for position, event in enumerate(events):
                if isinstance(event, ModelRequest):
                    now = fold.messages()
                    self.assertEqual(now[: len(sent)], sent, "a request must extend the one before")
                    sent = now
                fold.apply(event)
                messages = rebuild_messages(events[: position + 1])
                self.assertIsNone(find_fault(messages), events[: position + 1])
                self.assertEqual(fold.messages(), messages, "the incremental fold must equal the whole one")

    def test_every_cut_of_random_logs_is_valid(self):
        rng = random.Random(7)
        for _ in range(60):
            events = numbered(*random_log(rng))
            for limit in (1, 2, 5, 9):
                self.assertIsNone(find_fault(rebuild_messages(events, max_events=limit)))
                self.assertIsNone(find_fault(rebuild_messages(events, max_bytes=limit * 80)))


def random_log(rng):
    events, step = [], 0
    for _ in range(rng.randint(1, 4)):
        events.append(UserMessage(rng.choice(["hi", "", "\ud800", "x" * 50])))
        for _ in range(rng.randint(0, 3)):
            step += 1
            calls = [f"c{step}_{i}" for i in range(rng.randint(0, 3))]
            events += turn(step, rng.choice(["", "text"]), *calls)
    return events


class RequestDigestTest(unittest.TestCase):
    def test_the_incremental_digest_equals_the_one_from_nothing(self):
        from openagentic_sdk.parts.record.folds.audit import RequestDigest
        from openagentic_sdk.sessions.request import request_sha256

        digest, fold, tools = RequestDigest(), Conversation(), [{"type": "function", "function": {"name": "R"}}]
        for event in numbered(UserMessage("one"), *turn(1, "", "a"), UserMessage("two"), *turn(2, "x", "b")):
            fold.apply(event)
            messages = fold.messages()
            self.assertEqual(digest.of("m", messages, tools), request_sha256("m", messages, tools))

    def test_the_canonical_form_is_lines_of_sorted_ascii_json(self):
        import hashlib

        from openagentic_sdk.sessions.request import request_sha256

        line1 = json.dumps({"content": "\u00e9", "role": "user"}, sort_keys=True, separators=(",", ":"))
        whole = f'{line1}\n{{"model":"m","tools":[]}}\n'.encode()
        self.assertEqual(
            request_sha256("m", [{"role": "user", "content": "\u00e9"}], []), hashlib.sha256(whole).hexdigest()
        )


if __name__ == "__main__":
    unittest.main()
