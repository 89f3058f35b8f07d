"""The live screen of `run` and `chat` on a terminal: changing rows, Markdown, an editor, question boxes."""
