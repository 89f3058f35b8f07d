"""Which forbidding rules the machine can enforce, and which depend on words: files, programs, git's storage."""
