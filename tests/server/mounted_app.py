"""The application as part of another one, two mounts deep, for uvicorn; importing this needs FastAPI."""

from __future__ import annotations

from fastapi import FastAPI  # type: ignore[import-not-found]
from starlette.routing import Mount  # type: ignore[import-not-found]

from .served_app import make

agents = make()
application = FastAPI(lifespan=agents.lifespan, routes=[Mount("/a b", routes=[Mount("/agents", app=agents)])])  # type: ignore[attr-defined]
