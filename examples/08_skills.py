"""A project with a `.claude` folder: its memory and skills work unchanged, and the log records which were used."""

import asyncio

from model import PROJECTS, call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run
from openagentic_sdk.events import SkillActivated
from openagentic_sdk.skills.index import index_skills

TURNS = (
    {"tool_calls": [call("SkillActivate", name="release-check")], "expect": {"contains": "Temperature converter"}},
    {"text": "Not ready: one TODO is left.", "expect": {"contains": "Search `src` for the word TODO"}},
)


async def main() -> None:
    project = PROJECTS / "checklist"
    for skill in index_skills(project_dir=project):
        print(f"{skill.name}: {skill.summary}")
    options = OpenAgenticOptions(
        **model(*TURNS), cwd=project, setting_sources=("project",), session_store=MemorySessionStore()
    )
    result = await run(prompt="Is this ready to be released?", options=options)
    for event in result.events:
        if isinstance(event, SkillActivated):
            print(f"active: {event.name}, {len(event.body.splitlines())} lines, asked for by {event.requested_by}")
    print(result.final_text)


asyncio.run(main())
