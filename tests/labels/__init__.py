"""What untrusted text may not decide."""
