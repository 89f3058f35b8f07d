"""Run commands: the helper process, the host's side, the sandbox, and the effects of a command."""
