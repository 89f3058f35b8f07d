"""Errors as values: they cross the border between two processes, as `ProcessPoolExecutor` and Celery require."""

import copy
import inspect
import pickle
import unittest

import openagentic_sdk
from openagentic_sdk import Agent, OpenAgenticOptions, PermissionGate, run_sync
from openagentic_sdk.api import RunResult
from openagentic_sdk.errors import OpenAgentSdkError

from .support import options_for

# One value for each type that a constructor of an error takes, by a word of its declaration.
FAILED = RunResult(final_text="", session_id="s", events=[], usage=None, cost_usd=None, stop_reason="error")
VALUES = {"result:": FAILED, "Mapping": {}, "dict": {}, "Sequence": [], "list": [], "float": 0.5, "int": 1}
FROM_C = ("errno", "strerror", "filename", "name", "path", "msg")


def error_classes(cls=OpenAgentSdkError):
    """The class and all its subclasses in the package."""
    yield cls
    for child in cls.__subclasses__():
        if child.__module__.startswith(openagentic_sdk.__name__):
            yield from error_classes(child)


def example_of(cls):
    """An error of this class, with a value for each argument."""
    args, named = [], {}
    for name, parameter in [*inspect.signature(cls.__init__).parameters.items()][1:]:
        value = next((value for word, value in VALUES.items() if word in str(parameter)), "a word")
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            args.append(value)
    return cls(*args, **named)


class ErrorValueTest(unittest.TestCase):
    def test_every_error_is_the_same_after_pickling_and_copying(self):
        classes = set(error_classes())
        self.assertGreater(len(classes), 60)
        for cls in sorted(classes, key=lambda cls: cls.__name__):
            with self.subTest(cls.__name__):
                error = example_of(cls)
                error.add_note("seen twice")
                for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
                    self.assertIs(type(again), cls)
                    self.assertEqual((str(again), again.args, vars(again)), (str(error), error.args, vars(error)))
                    for name in FROM_C:
                        self.assertEqual(getattr(again, name, None), getattr(error, name, None), name)

    def test_options_agents_and_results_can_be_pickled_if_they_name_their_model_and_store(self):
        gate = PermissionGate(allow=["Bash(git diff:*)"])
        self.assertEqual(pickle.loads(pickle.dumps(gate)).allow, gate.allow)
        options = OpenAgenticOptions(model="openai:gpt-4o", session_store="sqlite:runs.db")
        result = run_sync(prompt="Hi.", options=options_for(["Hello."]))
        for value in (options, Agent("openai:gpt-4o", name="a", options=options), result, *result.events):
            self.assertEqual(pickle.loads(pickle.dumps(value)), value)


if __name__ == "__main__":
    unittest.main()
