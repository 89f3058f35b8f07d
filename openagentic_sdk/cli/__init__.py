"""The command `openagentic-sdk`: one module per subcommand, imported only if it is used."""
