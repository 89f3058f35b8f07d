"""What untrusted text may not decide: labels of results, and rules about the calls that they could lead to."""
