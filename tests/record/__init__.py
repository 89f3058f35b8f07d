"""What a session's record proves: signatures, erasing under a proof, and keeping."""
