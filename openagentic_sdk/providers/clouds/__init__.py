"""Models served by clouds: their addresses, signatures and stream framing, and their own protocols (Converse, Gemini)."""
