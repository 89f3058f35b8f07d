"""Lists of sessions and of open questions: pages by cursor, states, and operations on sessions from a list."""

from __future__ import annotations

import unittest

from openagentic_sdk.events import UserMessage, UserQuestion
from openagentic_sdk.server.asgi import HANDLERS, app
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.sessions.base import MOST_SCANNED
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.size import full_size

from .support import ASK, TENANTS, TOKEN, agents, ask, bearer, by_tenant, until_free

ANNA, BERT, CARL = map(bearer, TENANTS)


class ListCase(unittest.IsolatedAsyncioTestCase):
    def app(self, auth=TOKEN, **given):
        self.store = MemorySessionStore()
        made = app(agents(**given), store=self.store, auth=auth)
        self.addAsyncCleanup(made.desk.drain, 2.0)
        return made

    async def start(self, application, prompt="Go.", headers=None):
        answer = await ask(application, "POST", "/v1/sessions", {"prompt": prompt}, headers=headers)
        self.assertEqual(answer.status, 201, answer.body)
        return answer.json["session_id"]

    async def pages(self, application, path, name, headers=None):
        """The items of each page, to the last one."""
        found, cursor = [], ""
        while cursor is not None:
            answer = await ask(application, "GET", f"{path}{cursor and '&after='}{cursor}", headers=headers)
            self.assertEqual(answer.status, 200, answer.body)
            found.append(answer.json[name])
            cursor = answer.json["next"]
        return found


class Inbox(ListCase):
    async def test_the_open_questions_of_all_sessions_are_one_list_for_whom_they_may_be_answered(self):
        application = self.app(by_tenant, tea=[ASK, "Milk it is."])
        mine = [await self.start(application, f"Tea {number}?", ANNA) for number in range(3)]
        other = await self.start(application, "Coffee?", CARL)
        await until_free(application)
        pages = await self.pages(application, "/v1/questions?limit=2", "questions", BERT)
        rows = [row for page in pages for row in page]
        self.assertEqual([row["session_id"] for row in rows], mine[::-1])
        self.assertEqual([row["label"] for row in rows], ["Tea 2?", "Tea 1?", "Tea 0?"])
        question = rows[0]["question"]
        self.assertEqual((question["type"], question["prompt"]), ("user.question", "Milk or lemon?"))
        body = {"question_id": question["question_id"], "answer": "milk"}
        await ask(application, "POST", f"/v1/sessions/{rows[0]['session_id']}/answers", body, headers=ANNA)
        await until_free(application)
        [left] = await self.pages(application, "/v1/questions?limit=9", "questions", ANNA)
        self.assertNotIn(question["question_id"], [row["question"]["question_id"] for row in left])
        self.assertEqual([row["question"] for row in left][-2:], [row["question"] for row in rows][1:])
        [[row]] = await self.pages(application, "/v1/questions?limit=9", "questions", CARL)
        self.assertEqual(row["session_id"], other)
        self.assertEqual((await ask(application, "GET", "/v1/questions", headers={"Authorization": None})).status, 401)

    async def test_a_page_costs_the_same_however_many_sessions_wait_for_nobody(self):
        application = self.app()
        old = self.store.create_session()
        self.store.append_event(old, UserQuestion("q", "Well?"))
        for _ in range(MOST_SCANNED):
            self.store.create_session()
        pages = await self.pages(application, "/v1/questions?limit=5", "questions")
        self.assertEqual([[row["session_id"] for row in page] for page in pages], [[], [old]])


class Sessions(ListCase):
    async def test_sessions_are_listed_by_state_and_words_page_by_page(self):
        application = self.app(tea=[ASK, "Milk it is."])
        waiting = [await self.start(application, f"Tea {number}?") for number in range(3)]
        await until_free(application)
        idle = self.store.create_session()
        for query, expected in (
            ("state=waiting&limit=2", [waiting[2:0:-1], waiting[:1]]),
            ("state=idle&limit=2", [[idle]]),
            ("state=running&limit=2", [[]]),
            ("query=1%3F&limit=2", [[waiting[1]]]),
        ):
            pages = await self.pages(application, f"/v1/sessions?{query}", "sessions")
            self.assertEqual([[row["session_id"] for row in page] for page in pages], expected, query)
        answer = await ask(application, "GET", "/v1/sessions?offset=1&limit=1")
        self.assertEqual([row["session_id"] for row in answer.json["sessions"]], [waiting[2]])
        for query in (
            "state=asleep",
            "after=x",
            "offset=0&state=idle",
            "offset=0&after=x",
            "limit=201",
            "archived=yes",
        ):
            answer = await ask(application, "GET", f"/v1/sessions?{query}")
            self.assertEqual(answer.status, 400, query)

    async def test_a_session_is_renamed_archived_and_deleted_from_a_list(self):
        application = self.app(by_tenant)
        session_id = await self.start(application, headers=ANNA)
        await until_state_of(self, application, session_id)
        path = f"/v1/sessions/{session_id}"
        row = await ask(application, "POST", f"{path}/rename", {"title": "About tea"}, headers=ANNA)
        self.assertEqual((row.status, row.json["label"]), (200, "About tea"))
        for archived in (True, False):
            row = await ask(application, "POST", f"{path}/archive", {"archived": archived}, headers=ANNA)
            self.assertEqual(row.json["tags"], ["archived"] * archived)
            for query, is_listed in (("", not archived), ("archived=true", archived)):
                listed = await ask(application, "GET", f"/v1/sessions?{query}", headers=ANNA)
                self.assertEqual([each["session_id"] for each in listed.json["sessions"]], [session_id] * is_listed)
        for headers, confirm, status in ((CARL, session_id, 404), (ANNA, "yes", 400), (BERT, session_id, 403)):
            answer = await ask(application, "POST", f"{path}/delete", {"confirm": confirm}, headers=headers)
            self.assertEqual(answer.status, status, answer.body)
        self.store.append_event(session_id, UserMessage("still there"))
        answer = await ask(application, "POST", f"{path}/delete", {"confirm": session_id}, headers=ANNA)
        self.assertEqual((answer.status, answer.json), (200, {"deleted": [session_id]}))
        self.assertEqual((await ask(application, "GET", path, headers=ANNA)).status, 404)

    @full_size
    async def test_a_session_whose_run_continues_is_not_deleted(self):
        application = self.app()
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            writer.append([UserMessage("Go.")])
            answer = await ask(application, "POST", f"/v1/sessions/{session_id}/delete", {"confirm": session_id})
        self.assertEqual(answer.status, 409)
        self.assertTrue(self.store.session_exists(session_id))


class Table(unittest.TestCase):
    def test_each_route_of_the_table_has_what_answers_it_and_the_other_way_round(self):
        self.assertEqual(sorted(each.name for each in ENDPOINTS), sorted(HANDLERS))
        places = [(each.method, each.path) for each in ENDPOINTS]
        self.assertEqual(len(set(places)), len(places))


async def until_state_of(case, application, session_id):
    await until_free(application)
    case.assertEqual(case.store.read_summary(session_id).state, "idle")


if __name__ == "__main__":
    unittest.main()
