"""Running commands: the helper process, its host's side, the sandbox, and what a command leaves."""
