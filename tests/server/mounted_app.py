"""The application as a part of others', two mounts deep, for uvicorn: FastAPI is there, or this cannot be imported."""

from __future__ import annotations

from fastapi import FastAPI  # type: ignore[import-not-found]
from starlette.routing import Mount  # type: ignore[import-not-found]

from .served_app import make

agents = make()
application = FastAPI(lifespan=agents.lifespan, routes=[Mount("/a b", routes=[Mount("/agents", app=agents)])])  # type: ignore[attr-defined]
