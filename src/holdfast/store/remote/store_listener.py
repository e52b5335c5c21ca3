"""The listener of a group of servers: where clients of other hosts come in. There is none unless it was asked for.

Who may come in is decided as for everything of Holdfast that listens (`transport.auth.listener`): whoever proves to
hold the token, and nobody else. Each client that was let in has a proxy for each server. No torch here.
"""

from __future__ import annotations

import contextlib
import threading

from holdfast.errors import UsageError
from holdfast.store.client.pending import gone_text
from holdfast.store.diagnostics import complain
from holdfast.store.messages import Failed
from holdfast.store.owners import checked_name
from holdfast.store.remote.framing import head
from holdfast.store.remote.proxy import ClientProxy
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.network import candidates
from holdfast.transport.stream import Stream, name_of

__all__ = ["StoreListener"]


class StoreListener:
    """Lets clients in to the servers with the abstract sockets `name`.0, `name`.1, ...

    `credentials` is what clients need. Raises UsageError where it cannot listen at `place`.

    Resources: owns what listens and all proxies; `close` ends them.
    """

    def __init__(
        self, place: tuple[str, int], name: str, num_servers: int, ours: Credentials, theirs: Credentials
    ) -> None:  # fmt: skip
        self.credentials = theirs
        self._name, self._num_servers = name, num_servers
        self._lock = threading.Lock()
        self._proxies: dict[tuple[str, int], ClientProxy] = {}
        self._going: set[ClientProxy] = set()
        self._closed = False
        self._door = Listener(place, ours, admit=self._admits, came=self._came, complain=complain)
        where, port = self._door.address
        there = candidates(where)
        self.place = name_of((there[0].ip if there else where, port))  #: what clients dial

    def close(self) -> None:
        """Let nobody in any more, and end all proxies."""
        self._door.close()
        with self._lock:
            self._closed, proxies = True, list(self._going)
        for proxy in proxies:
            proxy.close()

    def _admits(self, hello: Hello) -> str | None:
        server, client = hello.facts.get("server"), hello.facts.get("client")
        if hello.kind != "store":
            return f"this is a parameter store, where nobody comes to {hello.kind[:20]}"
        if not isinstance(server, int) or not 0 <= server < self._num_servers:
            return f"there is no server {server}; this store has {self._num_servers}"
        try:
            checked_name(str(client), "client")
        except UsageError as error:
            return str(error)
        return None

    def _came(self, hello: Hello, stream: Stream) -> None:
        client, server = str(hello.facts["client"]), int(str(hello.facts["server"]))
        with self._lock:
            old = self._proxies.pop((client, server), None)
        # To greet takes no time, but to end a proxy does, and the door is not to be held up.
        threading.Thread(
            target=self._send_out, args=(stream, client, server, old), name="holdfast-store-listener", daemon=True
        ).start()

    def _send_out(self, stream: Stream, client: str, server: int, old: ClientProxy | None) -> None:
        if old is not None:  # the same client with a new connection, or another process with its name
            text = f"Another process has connected as client {client!r}. Give every process a name of its own."
            old.refuse("StoreError", text)
            old.close()
        with self._lock:
            if not self._closed:
                try:
                    proxy = ClientProxy(stream, client, f"{self._name}.{server}", lambda one: self._gone(one, server))
                    self._proxies[client, server] = proxy
                    self._going.add(proxy)
                    return
                except OSError as error:
                    with contextlib.suppress(OSError):
                        stream.send(head(Failed(-1, "ServerLost", gone_text(server, error.strerror or error))))
        stream.close()

    def _gone(self, proxy: ClientProxy, server: int) -> None:
        with self._lock:
            self._going.discard(proxy)
            if self._proxies.get((proxy.client, server)) is proxy:
                del self._proxies[proxy.client, server]
