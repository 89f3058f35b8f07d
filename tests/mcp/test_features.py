"""Features of servers other than tools, in both eras: questions, pictures, progress, resources, prompts, roots."""

from __future__ import annotations

import json
import sys
import unittest
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    AgentClient,
    McpServer,
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    answer_question,
    query,
    replay_events,
    submit,
    tool,
    what_if,
)
from openagentic_sdk.events import (
    CommandExpanded,
    McpServerChanged,
    ToolProgress,
    ToolResult,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.parts.mcp.questions import elicit
from openagentic_sdk.sessions.answers import check_answer
from openagentic_sdk.sessions.folds.features.untrusted import UntrustedFold
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.testing import ScriptedProvider
from tests.size import full_size

SCRIPT = str(Path(__file__).with_name("feature_server.py"))
ERAS = ("modern", "legacy")


def feature_server(era: str, *more: str, **settings: Any) -> McpServer:
    return McpServer(command=sys.executable, args=["-I", "-S", SCRIPT, era, *more], **settings)


def calls(*names: str, server: str = "x", **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": f"mcp__{server}__{name}", "arguments": arguments} for name in names]}


def options_for(turns: list[Any], server: McpServer | None, **changes: Any) -> OpenAgenticOptions:
    settings: dict[str, Any] = {
        "provider": ScriptedProvider(turns),
        "model": "scripted",
        "mcp_servers": {} if server is None else {"x": server},
        "permission_gate": PermissionGate(permission_mode="bypass"),
        "session_store": MemorySessionStore(),
    }
    return OpenAgenticOptions(**{**settings, **changes})


async def events_of(prompt: str | None, options: OpenAgenticOptions) -> list[Any]:
    return [event async for event in query(prompt=prompt, options=options)]


def results(events: list[Any]) -> list[ToolResult]:
    return [event for event in events if isinstance(event, ToolResult)]


class Questions(unittest.IsolatedAsyncioTestCase):
    async def test_a_server_asks_a_person_field_by_field_under_its_own_name(self) -> None:
        asked: list[UserQuestion] = []

        async def person(question: UserQuestion) -> str:
            asked.append(question)
            return (
                "seven"
                if "size" in question.prompt and len(asked) == 2
                else ""
                if "size" in question.prompt
                else "green"
            )

        for era in ERAS:
            asked.clear()
            gate = PermissionGate(permission_mode="bypass", user_answerer=person)
            events = await events_of(
                "go", options_for([calls("ask"), "Done."], feature_server(era), permission_gate=gate)
            )
            with self.subTest(era):
                said = json.loads(results(events)[0].output)
                self.assertEqual(said, [{"action": "accept", "content": {"name": "green", "size": 3}}])
                self.assertEqual(len(asked), 3)
                self.assertTrue(all("The MCP server x asks: Which tea, 0?" in question.prompt for question in asked))
                self.assertIn("'seven' does not fit", asked[2].prompt)
                use = next(event for event in events if event.type == "tool.use")
                self.assertEqual({question.tool_use_id for question in asked}, {use.tool_use_id})

    async def test_each_kind_of_field_accepts_valid_values_and_explains_invalid_ones(self) -> None:
        several = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 1}
        cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = [
            (
                {"type": "integer", "minimum": 0},
                {"9007199254740993": 2**53 + 1, "3.0": 3, "1e3": 1000},
                {"2.5": "not a whole number", "-1": "it must be at least 0", "x": "could not convert"},
            ),
            ({"type": "number"}, {"2.5": 2.5, "-7": -7}, {"nan": "it is not a number", "1e999": "it is not a number"}),
            ({"type": "boolean"}, {"YES": True, "n": False}, {"maybe": "answer yes or no"}),
            (
                several,
                {"Red": ["red"], "2": ["blue"]},
                {"red, blue": "choose 1 to 1", "green": "choose one of red, blue"},
            ),
            ({"type": "string", "minLength": 2}, {"ab": "ab"}, {"a": "its number of characters must be at least 2"}),
            ({"type": "string", "format": "date"}, {"2026-11-23": "2026-11-23"}, {"today": "it is not a valid date"}),
        ]
        for schema, fitting, refused in cases:
            params = {"requestedSchema": {"properties": {"it": schema}, "required": ["it"]}}
            for said, value in [*fitting.items(), *((one, None) for one in refused)]:
                asked: list[str] = []

                async def person(text: str, *_: Any, said: str = said, asked: list[str] = asked) -> str:
                    asked.append(text)
                    return said

                with self.subTest(f"{said} for {schema}"):
                    answer = await elicit("x", params, person)
                    if said in refused:
                        self.assertEqual(answer, {"action": "cancel"})
                        self.assertIn(refused[said], asked[1])
                    else:
                        self.assertEqual(json.dumps(answer["content"]), json.dumps({"it": value}))

    async def test_whatever_choice_is_shown_can_be_picked_and_names_its_own_value(self) -> None:
        long = ["x" * 300 + "a", "x" * 300 + "b"]
        odd = ["3", "2", "1", "cancel", "decline", "", ",", "a \u202eb", "Green, loose", "Green", *long]
        kinds: list[dict[str, Any]] = [
            {"enum": odd},
            {"oneOf": [{"const": f"value {at}", "title": title} for at, title in enumerate(odd)]},
            {"enum": [f"value {at}" for at in range(len(odd))], "enumNames": odd},
        ]
        for kind in kinds:
            values = kind["enum"] if "enum" in kind else [each["const"] for each in kind["oneOf"]]
            for several in (False, True):
                schema = {"type": "array", "items": kind} if several else {"type": "string", **kind}
                params = {"requestedSchema": {"properties": {"it": schema}, "required": ["it"]}}
                places = [*([at] for at in range(len(odd))), *([[8, 10], [11, 0, 6]] if several else [])]
                for picked in places:

                    async def person(
                        text: str, choices: tuple[str, ...], details: Mapping[str, Any], picked: list[int] = picked
                    ) -> str:
                        self.assertEqual(len(set(choices)), len(odd) + 1)
                        question = UserQuestion("q", text, choices, details=details)
                        return check_answer(question, ", ".join(choices[place] for place in picked))

                    with self.subTest(kind=list(kind), several=several, picked=picked):
                        meant = [values[place] for place in picked]
                        content = {"it": meant if several else meant[0]}
                        self.assertEqual(await elicit("x", params, person), {"action": "accept", "content": content})

    async def test_several_choices_are_told_from_one_whose_title_lists_them(self) -> None:
        titles = ["A", "B", "A, B", "Paris", "Paris, Texas", "b,C"]
        kinds: list[dict[str, Any]] = [
            {"enum": titles},
            {"oneOf": [{"const": f"value {at}", "title": title} for at, title in enumerate(titles)]},
            {"enum": titles, "enumNames": [f"title {at}" for at in range(len(titles))]},
        ]
        for kind in kinds:
            values = kind["enum"] if "enum" in kind else [each["const"] for each in kind["oneOf"]]
            params = {"requestedSchema": {"properties": {"it": {"type": "array", "items": kind}}, "required": ["it"]}}
            for picked in permutations(range(len(titles)), 3):

                async def person(
                    text: str, choices: tuple[str, ...], details: Mapping[str, Any], picked: tuple[int, ...] = picked
                ) -> str:
                    self.assertIn(choices[4], ("title 4", "Paris, Texas"))
                    question = UserQuestion("q", text, choices, details=details)
                    return check_answer(question, ", ".join(choices[place] for place in picked))

                with self.subTest(kind=kind, picked=picked):
                    answer = await elicit("x", params, person)
                    self.assertEqual(answer.get("content"), {"it": [values[place] for place in picked]})

    async def test_no_text_of_a_form_reaches_a_terminal_as_it_came(self) -> None:
        asked: list[str] = []

        async def person(text: str, *_: Any) -> str:
            asked.append(text)
            return "x"

        red = "\x1b[31m\u202ered"
        for schema in ({"type": "string", "format": red}, {"enum": [red]}, {"type": "string", "pattern": red}):
            await elicit("x", {"message": red, "requestedSchema": {"properties": {red: schema}}}, person)
        urls = ("https://bank.example@evil.example/", "http://[x", "https://", "file:///etc/passwd")
        answers = [(await elicit("x", {"mode": "url", "url": url}, person))["action"] for url in urls]
        self.assertEqual(answers, ["decline", "cancel", "cancel", "cancel"])
        self.assertIn("address of evil.example yourself", asked[-1])
        self.assertNotRegex("".join(asked), "[\x1b\u202e]")

    @full_size
    async def test_without_anybody_to_ask_a_server_is_declined_and_a_person_may_decline(self) -> None:
        async def person(question: UserQuestion) -> str:
            return "decline"

        for era in ERAS:
            for answerer in (None, person):
                gate = PermissionGate(permission_mode="bypass", user_answerer=answerer)
                settings = options_for([calls("ask"), "Done."], feature_server(era), permission_gate=gate)
                events = await events_of("go", settings)
                with self.subTest((era, answerer)):
                    self.assertEqual(json.loads(results(events)[0].output), [{"action": "decline"}])

    @full_size
    async def test_a_run_that_nobody_watches_waits_for_the_answer_and_continues_with_it(self) -> None:
        for era in ERAS:
            with self.subTest(era):
                store = MemorySessionStore()
                settings = options_for([calls("twice")], feature_server(era), session_store=store)
                parked = await submit("go", settings).wait()
                answers = iter(["green", "1", "black", ""])
                while parked.state == "waiting":
                    assert parked.question is not None
                    await answer_question(store, parked.session_id, parked.question.question_id, next(answers))
                    settings = options_for(
                        ["Done."], feature_server(era), session_store=store, resume=parked.session_id
                    )
                    parked = await submit(None, settings).wait()
                self.assertEqual((parked.state, parked.data), ("ended", "Done."))
                events = store.read_events(parked.session_id)
                [result] = results(events)
                said = json.loads(result.output)
                given = [one["content"] for one in said]
                self.assertEqual(given, [{"name": "green", "size": 1}, {"name": "black", "size": 3}])
                self.assertEqual(sum(isinstance(event, UserQuestion) for event in events), 4)
                replayed = await replay_events(events)
                self.assertTrue(replayed.ok, replayed)


class Results(unittest.IsolatedAsyncioTestCase):
    async def test_pictures_are_stored_once_and_sent_as_pictures_and_other_parts_are_described(self) -> None:
        for era in ERAS:
            provider = ScriptedProvider([calls("picture", "structure", "fail", "refuse"), "Done."])
            events = await events_of("go", options_for([], feature_server(era), provider=provider))
            with self.subTest(era):
                picture, structure, fail, refuse = results(events)
                kinds = [(part["type"], part["media_type"]) for part in picture.attachments]
                self.assertEqual(kinds, [("image", "image/png"), ("audio", "audio/wav"), ("other", "image/svg+xml")])
                self.assertTrue(all("data" not in part and len(part["sha256"]) == 64 for part in picture.attachments))
                self.assertTrue(picture.output.startswith("Look:\n[image/svg+xml, 6 bytes, is not shown"))
                self.assertIn("[resource tea, tea://list]", picture.output)
                sent = provider.requests[1]["messages"][-1]["content"]
                self.assertEqual([part["type"] for part in sent], ["image", "audio"])
                self.assertTrue(sent[0]["data"].startswith("iVBORw0KGgo"))
                self.assertEqual(structure.output, '{"tea": ["green"]}')
                self.assertEqual((fail.is_error, fail.outcome, fail.output), (True, "error", "no tea left"))
                self.assertEqual(refuse.outcome, "error")
                self.assertIn("unknown tool: refuse", refuse.error_message or "")
                self.assertTrue((await replay_events([e for e in events if e.seq is not None])).ok)

    async def test_parts_that_an_endpoint_cannot_take_become_text_and_those_it_refuses_are_omitted(self) -> None:
        class Blind(ScriptedProvider):
            inputs = ("image",)

        refusal = {"error": {"type": "http", "status": 400, "message": "no pictures, please"}}
        provider, store = Blind([calls("picture"), refusal, "Done."]), MemorySessionStore()
        settings = options_for([], feature_server("modern"), provider=provider, session_store=store)
        events = await events_of("go", settings)
        self.assertEqual(events[-1].stop_reason, "error")
        sent = provider.requests[1]["messages"]
        self.assertEqual([part["type"] for part in sent[-1]["content"]], ["image"])
        self.assertIn("[the audio (audio/wav) is stored but not sent", sent[-2]["content"])
        after = await events_of("again", replace(settings, resume=events[0].session_id))
        self.assertEqual(after[-1].stop_reason, "end")
        sent = provider.requests[2]["messages"]
        self.assertEqual([message["role"] for message in sent], ["system", "user", "assistant", "tool", "user"])
        self.assertIn("was refused and is left out", sent[3]["content"])
        replayed = await replay_events(store.read_events(events[0].session_id))
        self.assertTrue(replayed.ok, replayed)

    async def test_progress_is_shown_and_a_cancelled_call_is_cancelled_there_too(self) -> None:
        for era in ERAS:
            with self.subTest(era):
                settings = options_for([calls("slow"), "Stopped.", calls("pid"), "Done."], feature_server(era))
                async with AgentClient(settings) as client:
                    shown: list[ToolProgress] = []
                    await client.send("go")
                    async for event in client.receive():
                        if isinstance(event, ToolProgress):
                            shown.append(event)
                            await client.interrupt()
                        last = event
                    self.assertEqual((shown[0].progress, shown[0].total, shown[0].message), (1, 3, "wait"))
                    self.assertEqual(last.stop_reason, "interrupted")
                    self.assertEqual([event.seq for event in shown], [None] * len(shown))
                    # The server continues to read: it understood the cancellation, otherwise it would have died.
                    await client.send("again")
                    said = [event async for event in client.receive()]
                    self.assertEqual(said[-1].stop_reason, "end")

    async def test_a_server_that_asks_for_roots_receives_them(self) -> None:
        for era in ERAS:
            events = await events_of("go", options_for([calls("roots"), "Done."], feature_server(era)))
            with self.subTest(era):
                roots = json.loads(results(events)[0].output)["roots"]
                self.assertEqual(roots, [{"uri": Path.cwd().as_uri(), "name": Path.cwd().name}])


class ResourcesAndPrompts(unittest.IsolatedAsyncioTestCase):
    async def test_resources_are_listed_read_and_named_in_prompts(self) -> None:
        turn = {
            "tool_calls": [
                {"name": "ListMcpResources", "arguments": {}},
                {"name": "ReadMcpResource", "arguments": {"server": "x", "uri": "tea://picture"}},
                {"name": "ReadMcpResource", "arguments": {"server": "x", "uri": "tea://none"}},
                {"name": "ReadMcpResource", "arguments": {"server": "y", "uri": "tea://none"}},
            ]
        }
        for era in ERAS:
            prompt = "What of @x:tea://list, @x:tea://no and @y:z?"
            events = await events_of(prompt, options_for([turn, "Done."], feature_server(era)))
            with self.subTest(era):
                listed, picture, missing, stranger = results(events)
                self.assertEqual(
                    [one.get("uri", one.get("uri_template")) for one in listed.output["resources"]],
                    ["tea://list", "tea://{kind}"],
                )
                self.assertEqual(picture.attachments[0]["media_type"], "image/png")
                self.assertIn("no resources/read", missing.error_message or "")
                self.assertIn("the servers are x", stranger.error_message or "")
                said = next(event.text for event in events if isinstance(event, UserMessage))
                self.assertTrue(said.startswith(f"{prompt}\n\nThe resource tea://list of the MCP server x:\n"))
                self.assertIn("[tea://list]\ngreen, black", said)
                self.assertIn("The resource tea://no of the MCP server x:\n(it could not be read:", said)
                view = SessionView((UntrustedFold,)).extend(events)
                wanted = ["MCP: x tea://list", "MCP: x tea://no", "MCP: ListMcpResources", "MCP: x tea://picture"]
                self.assertEqual(list(view.fold(UntrustedFold).sources)[:4], wanted)

    async def test_prompts_of_servers_are_commands(self) -> None:
        events = await events_of('/mcp__x__brew "oolong tea" how=hot', options_for(["Done."], feature_server("modern")))
        said = next(event for event in events if isinstance(event, UserMessage))
        self.assertEqual(said.text, 'Brew {"how": "hot", "kind": "oolong tea"}.')
        self.assertEqual(said.untrusted, ["MCP: prompt brew of x"])
        command = next(event for event in events if isinstance(event, CommandExpanded))
        self.assertEqual((command.name, command.scope, command.grants), ("mcp__x__brew", "mcp", []))
        for wrong, reason in (("/mcp__x__brew", "kind is missing"), ("/mcp__x__fry", "the prompts are brew")):
            provider = ScriptedProvider(["never asked"])
            failed = await events_of(wrong, options_for([], feature_server("legacy"), provider=provider))
            self.assertEqual(failed[-1].stop_reason, "error")
            self.assertIn(reason, failed[-1].error_message)
            self.assertEqual(provider.requests, [])

    async def test_pictures_of_a_prompt_or_a_named_resource_are_sent_with_it(self) -> None:
        for prompt in ("/mcp__x__brew oolong how=drawn", "Look at @x:tea://picture"):
            provider = ScriptedProvider(["Done."])
            events = await events_of(prompt, options_for([], feature_server("modern"), provider=provider))
            with self.subTest(prompt):
                said = next(event for event in events if isinstance(event, UserMessage))
                self.assertEqual(
                    [(part["type"], part["media_type"]) for part in said.attachments], [("image", "image/png")]
                )
                text, picture = provider.requests[0]["messages"][-1]["content"]
                self.assertEqual((text["text"], picture["type"]), (said.text, "image"))

    async def test_a_servers_instructions_are_in_the_system_prompt_cleaned_and_under_its_name(self) -> None:
        provider = ScriptedProvider(["Done."])
        await events_of("go", options_for([], feature_server("modern"), provider=provider))
        system = provider.requests[0]["messages"][0]["content"]
        self.assertIn('<mcp-server name="x">\nAsk before you guess.\n</mcp-server>', system)


class Lifetimes(unittest.IsolatedAsyncioTestCase):
    async def test_a_conversation_keeps_its_servers_and_starts_a_dead_one_again(self) -> None:
        turns = [calls("pid"), "1", calls("pid"), "2", calls("die"), "3", calls("pid"), "4"]
        pids, states = [], []
        async with AgentClient(options_for(turns, feature_server("legacy"))) as client:
            for prompt in ("one", "two", "three", "four"):
                await client.send(prompt)
                async for event in client.receive():
                    if isinstance(event, ToolResult):
                        pids.append(event.output)
                    elif isinstance(event, McpServerChanged):
                        states.append(event.state)
        self.assertEqual(pids[0], pids[1])
        self.assertIsNone(pids[2])
        self.assertNotEqual(pids[0], pids[3])
        self.assertEqual(states, ["started", "lost", "restarted"])

    @full_size
    async def test_every_legacy_version_is_spoken(self) -> None:
        for version in ("2025-06-18", "2025-03-26", "2024-11-05"):
            events = await events_of("go", options_for([calls("count"), "Done."], feature_server("legacy", version)))
            with self.subTest(version):
                server = next(event for event in events if isinstance(event, McpServerChanged))
                self.assertEqual((server.state, server.protocol_version), ("started", version))
                self.assertEqual(results(events)[0].output, "1")
        events = await events_of("go", options_for(["Done."], feature_server("legacy", "1999-01-01")))
        server = next(event for event in events if isinstance(event, McpServerChanged))
        self.assertEqual(server.state, "failed")
        self.assertIn("speaks 1999-01-01, and this client speaks 2026-07-28, 2025-11-25", server.error_message or "")

    async def test_what_if_answers_known_calls_without_any_server(self) -> None:
        store = MemorySessionStore()
        events = await events_of(
            "go", options_for([calls("count"), "Done."], feature_server("modern"), session_store=store)
        )
        prompt = next(event for event in events if isinstance(event, UserMessage))
        broken = McpServer(command="no-such-program-anywhere")
        settings = options_for([calls("count"), "Done, too."], broken, session_store=store)
        source = events[0].session_id
        other = [event async for event in what_if(source_id=source, at_seq=prompt.seq or 0, options=settings)]
        self.assertEqual(results(other)[-1].output, "1")
        self.assertEqual(other[-1].final_text, "Done, too.")

    async def test_tools_of_this_process_are_a_server_like_any_other(self) -> None:
        @tool(effect="read")
        def brew(kind: str) -> str:
            """Brew."""
            return f"{kind} tea"

        settings = options_for([calls("brew", kind="green"), "Done."], McpServer(tools=[brew]))
        events = await events_of("go", settings)
        self.assertEqual(results(events)[0].output, "green tea")
        gate = PermissionGate(permission_mode="default", deny=["mcp__x__brew"])
        settings = options_for([calls("brew"), "Done."], McpServer(tools=[brew]), permission_gate=gate)
        [result] = results(await events_of("go", settings))
        self.assertEqual(result.error_type, "ToolNotFoundError")


if __name__ == "__main__":
    unittest.main()
