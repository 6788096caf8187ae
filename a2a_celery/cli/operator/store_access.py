"""Store access of the operators' commands, for tasks of all callers, without a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ...app import A2A
from ...errors import BlobsUnavailable, ConfigError, StoreUnavailable
from ...store import Keys, SyncStore
from ...store.admin.schema import open_store, require_compatible
from ...store.blobs.blob_store import blobs_of
from ..app_loader import load_configured_a2a


@contextmanager
def operator_store(context: click.Context, agent: str | None) -> Iterator[tuple[A2A, SyncStore, Keys]]:
    """Open the command's app, its store and its keys.

    Raises:
        click.ClickException: The app has no agents, or none called `agent`; a setting cannot be used; Redis is
            unavailable or has another schema.
    """
    found = load_configured_a2a(context)
    if agent is not None and agent not in found.agents:
        raise click.ClickException(f"no agent {agent!r}; this app has {', '.join(found.agents) or 'none'}")
    settings = found.settings
    store = SyncStore(settings.store_url, blobs_of(settings), wait_replicas=settings.store_wait_replicas)
    keys = Keys(found.settings.key_prefix)
    try:
        require_compatible(open_store(store, keys), None)
        yield found, store, keys
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    except BlobsUnavailable as e:
        raise click.ClickException(f"{e}: is A2A_BLOB_URL the one that the workers use?") from e
    except StoreUnavailable as e:
        raise click.ClickException(f"{e}: is it up, and is A2A_STORE_URL the one that the workers use?") from e
    finally:
        store.close()


def duration(seconds: float) -> str:
    """Return seconds in their two largest units: "3 min 20 s" for 200."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
