"""What programs are made from: every route of the server, what goes in and comes out of it, and each refusal."""
