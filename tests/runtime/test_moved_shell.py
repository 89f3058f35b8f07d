"""Commands are judged in the folder to which the commands before them moved the shell."""

import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk.assemble import build_agent
from openagentic_sdk.kernel.agent import RunRequest
from openagentic_sdk.kernel.part import without_parts
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.kernel.task import RunTask, run_events
from openagentic_sdk.parts.shell_folder import ShellFolder
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.tools.bash import BashTool

from .support import events_of, options_for


class MovedShellTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.outside = Path(folder.name).resolve()
        self.root = self.outside / "project"
        for name in (".git/hooks", "src", "vendor/.git"):
            (self.root / name).mkdir(parents=True)
        (self.outside / "outside.txt").write_text("x\n")
        (self.root / "src" / "key").write_text("x\n")
        (self.root / "src" / "run.sh").write_text("touch ran\n")
        (self.root / "src" / "up").symlink_to(self.outside)

    async def test_commands_stay_in_the_judged_folder_if_the_gate_cannot_learn_of_another(self):
        turns = [{"tool_calls": [{"name": "Bash", "arguments": {"command": c}}]} for c in ("cd src", "pwd")]
        options = options_for([*turns, {"text": "done"}], tools=[BashTool()], cwd=str(self.root))
        agent = build_agent(options)
        agent = replace(agent, parts=without_parts(agent.parts, ShellFolder))
        events = [event async for event in run_events(lambda: RunTask.start(agent, RunRequest(), Said("go")))]
        written = [event.output["stdout"] for event in events if event.type == "tool.result"]
        self.assertEqual(written, ["", f"{self.root}\n"])

    async def outcomes(self, *commands, **policy):
        """Run the commands one after another, and return whether each was allowed."""
        turns = [{"tool_calls": [{"name": "Bash", "arguments": {"command": command}}]} for command in commands]
        options = options_for(
            [*turns, {"text": "done"}],
            tools=[BashTool()],
            cwd=str(self.root),
            permission_gate=PermissionGate(**policy),
            sandbox="off",  # judge the commands by their text alone, without a trial run on a copy
        )
        events = await events_of("go", options)
        return [event.allowed for event in events if event.type == "permission.decision"]

    async def test_relative_paths_are_resolved_in_the_changed_folder(self):
        self.assertEqual(await self.outcomes("cd src", "cat up/outside.txt"), [True, False])
        self.assertEqual(await self.outcomes("cd src", "cat key", "cat ../src/key"), [True, True, True])
        denied = await self.outcomes("cd src", "cat key", deny=["Read(./src/key)"], permission_mode="bypass")
        self.assertEqual(denied, [True, False])

    async def test_protected_folders_stay_protected_from_inside(self):
        outcomes = await self.outcomes("cd .git/hooks", "echo x > pre-commit", permission_mode="acceptEdits")
        self.assertEqual(outcomes, [True, False])
        self.assertFalse((self.root / ".git" / "hooks" / "pre-commit").exists())

    async def test_a_rule_for_a_program_by_its_path_does_not_move_along(self):
        self.assertEqual(await self.outcomes("cd src", "./run.sh", allow=["Bash(./run.sh)"]), [True, False])

    async def test_git_stays_in_the_repository_where_the_session_began(self):
        rules = {"allow": ["Bash(git status:*)"]}
        self.assertEqual(await self.outcomes("cd vendor", "git status", **rules), [True, False])
        self.assertEqual(await self.outcomes("cd src", "git status", **rules), [True, True])


if __name__ == "__main__":
    unittest.main()
