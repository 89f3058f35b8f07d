"""The command `openagentic-sdk`: one module per subcommand, imported when it is the one that was asked for."""
