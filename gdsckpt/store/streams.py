"""Bytes over a socket, plain or in TLS, that are sent from and received into a caller's memory.

Nothing here copies bytes or holds them. A wait ends when no byte moved for the timeout, however
long the whole takes.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from typing import Protocol

_SEND_BYTES = 4 << 20
_RECEIVE_BYTES = 4 << 20
# Bytes for which the kernel wakes a reader, rather than for each packet.
_LOW_WATER_BYTES = 256 << 10
_ANY_INPUT = select.POLLIN | select.POLLHUP | select.POLLERR


class StalledError(OSError):
    """No byte moved for the whole timeout."""


class Stream(Protocol):
    """One connection, used by one thread at a time."""

    def send_some(self, view: memoryview) -> int:
        """Send some bytes.

        Returns:
            Bytes sent; 0 where the other side has something to say first.

        Raises:
            StalledError: No byte moved for the timeout.
            OSError: The connection is broken.
        """

    def receive_first(self, view: memoryview) -> int:
        """Receive what is there, at least one byte; 0 at the end. Raises as ``send_some``."""

    def receive_some(self, view: memoryview) -> int:
        """Receive bytes that are sure to come, as many at once as is cheap.

        Returns and raises as ``receive_first``.
        """

    def is_idle(self) -> bool:
        """Tell whether nothing came: an unused connection that was closed is readable."""

    def shut_down(self) -> None:
        """Wake the thread that waits for this stream: it gets an error or the end."""

    def close(self) -> None:
        """Give the socket back."""


class PlainStream:
    """A stream without encryption.

    Args:
        connected: The socket, which the stream takes over.
        timeout_s: Seconds without progress.
    """

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        self._socket = connected
        self._timeout_ms = int(timeout_s * 1000)
        # The kernel's own timeout: Python's would poll before each call.
        connected.settimeout(None)
        seconds = int(timeout_s)
        timeval = struct.pack("@ll", seconds, int((timeout_s - seconds) * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._low_water_bytes = 1
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN | select.POLLOUT)

    def send_some(self, view: memoryview) -> int:
        """As ``Stream``."""
        while True:
            ready = self._poll.poll(self._timeout_ms)
            if not ready:
                raise StalledError("no byte was taken")
            if ready[0][1] & _ANY_INPUT:
                return 0
            try:
                return self._socket.send(view[:_SEND_BYTES], socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue

    def receive_first(self, view: memoryview) -> int:
        """As ``Stream``."""
        return self._receive(view, 1, 0)

    def receive_some(self, view: memoryview) -> int:
        """As ``Stream``; waits until ``view``, or a large part of it, is full."""
        if view.nbytes <= _LOW_WATER_BYTES:
            # The last bytes that are expected must wake us, however few they are.
            return self._receive(view, 1, socket.MSG_WAITALL)
        nbytes = min(_RECEIVE_BYTES, view.nbytes - _LOW_WATER_BYTES)
        return self._receive(view[:nbytes], _LOW_WATER_BYTES, socket.MSG_WAITALL)

    def _receive(self, view: memoryview, low_water_bytes: int, flags: int) -> int:
        if low_water_bytes != self._low_water_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
            self._low_water_bytes = low_water_bytes
        try:
            return self._socket.recv_into(view, 0, flags)
        except BlockingIOError:
            raise StalledError("no byte came") from None

    def is_idle(self) -> bool:
        """As ``Stream``."""
        return not any(events & _ANY_INPUT for _, events in self._poll.poll(0))

    def shut_down(self) -> None:
        """As ``Stream``."""
        _shut_down(self._socket)

    def close(self) -> None:
        """As ``Stream``."""
        self._socket.close()


class TlsStream:
    """A stream in TLS.

    Args:
        wrapped: The socket after its handshake, which the stream takes over.
        timeout_s: Seconds without progress.
    """

    def __init__(self, wrapped: ssl.SSLSocket, timeout_s: float) -> None:
        self._socket = wrapped
        self._timeout_ms = int(timeout_s * 1000)
        wrapped.settimeout(0)
        # What came while sending: an answer, which the reader gets first.
        self._early = b""
        self._readable = select.poll()
        self._readable.register(wrapped, select.POLLIN)
        self._either = select.poll()
        self._either.register(wrapped, select.POLLIN | select.POLLOUT)

    def send_some(self, view: memoryview) -> int:
        """As ``Stream``."""
        while True:
            try:
                return self._socket.send(view)
            except ssl.SSLWantWriteError:
                ready = self._either.poll(self._timeout_ms)
            if not ready:
                raise StalledError("no byte was taken")
            if ready[0][1] & _ANY_INPUT and self._look_for_answer():
                return 0

    def _look_for_answer(self) -> bool:
        """Tell whether more than TLS's own messages, such as session tickets, came."""
        try:
            self._early += self._socket.recv(1 << 14)
        except ssl.SSLWantReadError:
            return False
        return True

    def receive_first(self, view: memoryview) -> int:
        """As ``Stream``."""
        if self._early:
            nbytes = min(view.nbytes, len(self._early))
            view[:nbytes] = self._early[:nbytes]
            self._early = self._early[nbytes:]
            return nbytes
        while True:
            try:
                return self._socket.recv_into(view)
            except ssl.SSLWantReadError:
                if not self._readable.poll(self._timeout_ms):
                    raise StalledError("no byte came") from None
            except ssl.SSLEOFError:
                return 0

    def receive_some(self, view: memoryview) -> int:
        """As ``Stream``; OpenSSL gives 16 KiB at a time, so that a short way round counts."""
        done = self.receive_first(view)
        receive, end = self._socket.recv_into, view.nbytes
        try:
            while 0 < done < end:
                received = receive(view[done:])
                if not received:
                    break
                done += received
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            return done
        return done

    def is_idle(self) -> bool:
        """As ``Stream``."""
        # Session tickets come after the handshake, and are no reason to drop the connection.
        return not self._early and not (self._readable.poll(0) and self._ends_or_answers())

    def _ends_or_answers(self) -> bool:
        try:
            return self._look_for_answer()
        except OSError:
            return True

    def shut_down(self) -> None:
        """As ``Stream``."""
        # Not SSLSocket.shutdown: after it, reads would give the encrypted bytes.
        _shut_down(self._socket)

    def close(self) -> None:
        """As ``Stream``."""
        self._socket.close()


def _shut_down(connected: socket.socket) -> None:
    try:
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:  # closed already
        return


def tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of ``host`` that answers.

    Raises:
        OSError: None does, or the name is not known.
    """
    # RFC 6761, section 6.3: names below localhost are loopback addresses; many resolvers know none.
    is_below = host.lower().rstrip(".").endswith(".localhost")
    connected = socket.create_connection(("localhost" if is_below else host, port), timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
