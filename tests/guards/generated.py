"""Files generated from the code: `python3 -m tests.guards.generated` writes them, and a test compares them."""

from __future__ import annotations

from pathlib import Path

from . import claude_page, contract_page, environment_page, events_page, operations_stub, public_stub, settings_pages


def files() -> dict[Path, str]:
    """The generated files with the text that each should have."""
    return {
        claude_page.PAGE: claude_page.page(),
        contract_page.PAGE: contract_page.page(),
        environment_page.PAGE: environment_page.page(),
        events_page.PAGE: events_page.page(),
        operations_stub.STUB: operations_stub.stub(),
        public_stub.STUB: public_stub.stub(),
        settings_pages.PAGE: settings_pages.page(),
        settings_pages.SENTENCES: settings_pages.sentences(),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
