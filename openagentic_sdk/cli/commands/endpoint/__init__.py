"""Commands about the endpoints that models are asked at."""
