"""The ground floor: small things that every room may use, and that know none of them."""
