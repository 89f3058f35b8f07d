"""What the machine can hold of the rules that forbid, and what words alone must: files, programs, what git has stored."""
