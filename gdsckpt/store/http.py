"""Carries the requests of an object store: connections kept, over TLS and through proxies.

botocore composes and signs the requests (gdsckpt/store/s3_client.py). Bodies are sent from the
caller's buffer and received into it, without a copy, which is what the standard clients spend most
of their time on.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from gdsckpt.store.exchange import (
    HEAD_MAX_BYTES,
    PORTS,
    Exchange,
    Origin,
    Request,
    Response,
    TransportError,
    parsed_head,
    proxy_authorization,
)
from gdsckpt.store.streams import PlainStream, StalledError, Stream, TlsStream, tcp

_CONNECT_TIMEOUT_MAX_S = 10.0


class Pool:
    """Connections to servers, kept for the next request. Any thread may use it.

    Args:
        timeout_s: Seconds without progress after which a request fails.
        tls: Gives the TLS context; called when the first encrypted connection is made.
        proxy_of: Gives the proxy's URL for a URL, or None.
    """

    def __init__(
        self,
        timeout_s: float,
        tls: Callable[[], ssl.SSLContext],
        proxy_of: Callable[[str], str | None],
    ) -> None:
        self._timeout_s = timeout_s
        self._tls = tls
        self._proxy_of = proxy_of
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[Stream]] = {}
        self._busy: set[Exchange] = set()
        # For pools that nobody closes.
        weakref.finalize(self, _close_all, self._idle)

    def exchange(self, request: Request) -> Response:
        """Send a request and receive the answer to it.

        Raises:
            TransportError: There was none.
        """
        parts = urlsplit(request.url)
        host = parts.hostname or ""
        port = parts.port or PORTS[parts.scheme]
        origin = Origin(parts.scheme, host, port, self._proxy_of(request.url) or "")
        exchange = Exchange(request, origin)
        with self._lock:
            self._busy.add(exchange)
        try:
            with self._translated(exchange):
                exchange.use(self._idle_stream(origin) or self._connect(exchange))
                response = exchange.run()
        finally:
            with self._lock:
                self._busy.discard(exchange)
                if exchange.is_reusable:
                    self._idle.setdefault(origin, []).append(exchange.taken_stream())
            exchange.close()
        return response

    def interrupt(self) -> None:
        """Break off all exchanges that are going on: they raise ``Interrupted``."""
        with self._lock:
            for exchange in self._busy:
                exchange.interrupt()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            _close_all(self._idle)

    def _idle_stream(self, origin: Origin) -> Stream | None:
        while True:
            with self._lock:
                streams = self._idle.get(origin)
                if not streams:
                    return None
                stream = streams.pop()
            if stream.is_idle():
                return stream
            stream.close()  # the server ended it meanwhile

    def _connect(self, exchange: Exchange) -> Stream:
        origin = exchange.origin
        proxy = urlsplit(origin.proxy)
        host, port = origin.host, origin.port
        if origin.proxy:
            host, port = proxy.hostname or "", proxy.port or 80
        connected = tcp(host, port, min(_CONNECT_TIMEOUT_MAX_S, self._timeout_s))
        try:
            if origin.scheme == "http":
                return PlainStream(connected, self._timeout_s)
            if origin.proxy:
                _tunnel(connected, origin)
            # The handshake is bounded as the connection is: by the socket's own timeout.
            wrapped = self._tls().wrap_socket(connected, server_hostname=origin.host)
            return TlsStream(wrapped, self._timeout_s)
        except BaseException:
            connected.close()
            raise

    @contextlib.contextmanager
    def _translated(self, exchange: Exchange) -> Iterator[None]:
        try:
            yield
        except (OSError, TransportError) as error:
            if exchange.is_interrupted:
                raise TransportError(
                    "Interrupted", "the caller broke it off", is_retryable=False
                ) from error
            if isinstance(error, TransportError):
                raise
            raise self._transport_error(error, exchange.origin) from error

    def _transport_error(self, error: OSError, origin: Origin) -> TransportError:
        where = f"{origin.host}:{origin.port}"
        if isinstance(error, StalledError):
            text = f"{error} by {where} for {self._timeout_s:g} s"
            return TransportError("Timeout", text)
        if isinstance(error, TimeoutError):
            return TransportError("Timeout", f"{where} did not accept a connection in time")
        if isinstance(error, ssl.SSLCertVerificationError):
            text = (
                f"the certificate of {where} is not trusted ({error.verify_message}): set "
                "AWS_CA_BUNDLE to the authority that signed it"
            )
            return TransportError("ConnectionFailed", text, is_retryable=False)
        is_unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
        reason = error.strerror or str(error)
        return TransportError("ConnectionFailed", f"{where}: {reason}", is_retryable=not is_unknown)


def _close_all(idle: dict[Origin, list[Stream]]) -> None:
    for streams in idle.values():
        for stream in streams:
            stream.close()
    idle.clear()


def _tunnel(connected: socket.socket, origin: Origin) -> None:
    """Have a proxy connect through to the origin. Source: RFC 9110, CONNECT."""
    target = f"{origin.host}:{origin.port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"{name}: {value}" for name, value in proxy_authorization(origin.proxy)]
    connected.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        # Byte by byte: what follows belongs to TLS.
        byte = connected.recv(1)
        if not byte or len(head) > HEAD_MAX_BYTES:
            raise ConnectionResetError("the proxy gave no answer")
        head += byte
    status, _ = parsed_head(head[:-4])
    if status != 200:
        raise TransportError("ConnectionFailed", f"the proxy answered {status}")
