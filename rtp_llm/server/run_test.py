# SPDX-License-Identifier: Apache-2.0
"""Where a server listens, in words."""

from __future__ import annotations

import socket

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.listener import bind, url_of
from rtp_llm.server.http.start_error import StartError


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
def test_addresses_can_be_used_as_they_are_shown(host: str, shown: str) -> None:
    """Also of a server that listens at all addresses, and of one that speaks IPv6."""
    try:
        listener = bind(Settings(model="m", host=host, port=0))
    except StartError:
        pytest.skip("this machine has no IPv6")
    port = listener.getsockname()[1]
    assert url_of(listener, Settings()) == f"http://{shown}:{port}"
    named = f"[{host}]" if ":" in host else host
    with pytest.raises(StartError) as raised:
        bind(Settings(model="m", host=host, port=port))
    assert str(raised.value).startswith(f"{named}:{port} is in use")
    with socket.create_connection(("::1" if ":" in host else "127.0.0.1", port)):
        listener.close()
