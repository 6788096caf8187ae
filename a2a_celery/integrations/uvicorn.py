"""Supported versions of uvicorn, whose protocol classes ``a2a gateway`` extends."""

from __future__ import annotations

from . import Library

UVICORN = Library("uvicorn>=0.40,<1", checked="0.54.0")
