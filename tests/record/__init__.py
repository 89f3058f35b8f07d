"""What a session's record proves: signatures, erasing with a proof, and keeping."""
