"""The live screen of `run` and `chat` on a terminal: rows that change, Markdown, an editor, boxes that ask."""
