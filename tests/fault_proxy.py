"""A proxy before the S3 server that knows operations and does harm to them on demand.

It hands ``Host`` through, so that signatures stay valid. Rules say which requests are harmed::

    proxy.harm("UploadPart", answers(503, "SlowDown"), times=2)

Each connection of a client has a thread; each request has a connection of its own to the server.
"""

import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Callable

from fault_exchange import Cut, Exchange, flipped

HOST = "127.0.0.1"
FOREVER = None


@dataclasses.dataclass
class Rule:
    """Requests of ``op`` whose key has ``key`` in it meet ``fault``, after ``skip``, ``times``."""

    op: str
    fault: Callable
    times: int | None
    skip: int
    key: str
    num_met: int = 0


@dataclasses.dataclass(frozen=True)
class Seen:
    """A request that came: its operation, its key and the fault that it met, if any."""

    op: str
    key: str
    fault: str


class FaultProxy:
    """The proxy; a context manager.

    It also serves as a forward proxy: requests with a whole URL, and CONNECT.

    Args:
        port: Of the server, on loopback.
        tls: Server-side context, for clients that use TLS; None for plain HTTP.
    """

    def __init__(self, port, tls=None):
        self._upstream = (HOST, port)
        self._tls = tls
        self._lock = threading.Lock()
        self._rules = []
        self._closed = threading.Event()
        self._connections = set()
        self.seen = []

    def __enter__(self):
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.endpoint = f"{'https' if self._tls else 'http'}://{HOST}:{self.port}"
        self._start(self._accept)
        return self

    def __exit__(self, *exc):
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for each in connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def harm(self, op, fault, *, times=1, skip=0, key=""):
        """Let requests meet a fault; of several rules the first that is not used up counts."""
        with self._lock:
            self._rules.append(Rule(op, fault, times, skip, key))

    def heal(self):
        """Drop all rules."""
        with self._lock:
            self._rules.clear()

    def ops(self, op=None):
        """Give the requests that came, all or of one operation."""
        with self._lock:
            return [each for each in self.seen if op in (None, each.op)]

    def wait_closed(self):
        """Wait for the end of the proxy."""
        self._closed.wait()

    def fault_for(self, op, key):
        """Give the fault of the rule that a request meets, or None, and note the request."""
        with self._lock:
            found = next((rule for rule in self._rules if self._meets(rule, op, key)), None)
            fault = found.fault if found else None
            self.seen.append(Seen(op, key, getattr(fault, "__qualname__", "").split(".")[0]))
            return fault

    def _meets(self, rule, op, key):
        if rule.op not in ("*", op) or rule.key not in key:
            return False
        rule.num_met += 1
        nth = rule.num_met - rule.skip
        return nth > 0 and (rule.times is None or nth <= rule.times)

    def _start(self, target, *args):
        threading.Thread(target=target, args=args, daemon=True).start()

    def _secured(self, connection):
        secured = self._tls.wrap_socket(connection, server_side=True)
        with self._lock:
            self._connections.discard(connection)
            self._connections.add(secured)
        return secured

    def _accept(self):
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection):
        try:
            if self._tls is not None:
                connection = self._secured(connection)
            while Exchange(self, connection, self._upstream).run():
                continue
        except Cut as cut:
            if cut.reset:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:
            pass  # the client or the server is gone
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def error_body(code, message="", more=""):
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message or code}</Message>{more}</Error>"
    ).encode()


def answers(status, code, *, message="", headers=(), more="", drain=True):
    """The server refuses; without ``drain`` before it has taken the body."""

    def fault(exchange):
        if drain:
            exchange.drain()
        exchange.reply(status, headers, error_body(code, message, more))
        if not drain:
            raise Cut(reset=False)

    return fault


def says_ok_with_error(code):
    """A status of 200, and an error in the body."""
    return answers(200, code)


def does_and_says_ok_with_nothing():
    """The request is done, and the answer is 200 without a body or headers."""

    def fault(exchange):
        exchange.forward(lambda exchange, _lines, _body: exchange.reply(200))

    return fault


def resets(after=None):
    """The connection is reset: at once, or when ``after`` bytes of the body came."""

    def fault(exchange):
        received = 0
        if after is not None:
            for piece in exchange.body():
                received += len(piece)
                if received >= after:
                    break
        raise Cut

    return fault


def cuts_upload(after):
    """The server gets ``after`` bytes of the body, and the client no answer."""

    def fault(exchange):
        exchange.send_request(most=after)
        raise Cut

    return fault


def drops_answer(*, reset=True):
    """The request is done, its answer is lost."""

    def fault(exchange):
        def drop(_exchange, _lines, _body):
            raise Cut(reset=reset)

        exchange.forward(drop)

    return fault


def hangs():
    """Nothing comes, and the connection stays open."""

    def fault(exchange):
        exchange.drain()
        exchange.proxy.wait_closed()
        raise Cut

    return fault


def stalls_answer(after):
    """``after`` bytes of the answer's body come, then nothing."""

    def fault(exchange):
        def stall(exchange, lines, body):
            head = "\r\n".join([*lines, "", ""]).encode("latin-1")
            exchange.client.sendall(head + bytes(body[:after]))
            exchange.proxy.wait_closed()
            raise Cut

        exchange.forward(stall)

    return fault


def takes_no_more(after):
    """``after`` bytes of the request's body are taken, then no more."""

    def fault(exchange):
        received = 0
        for piece in exchange.body():
            received += len(piece)
            if received >= after:
                break
        exchange.proxy.wait_closed()
        raise Cut

    return fault


def flips_answer(at):
    """One bit of the answer's body is changed."""

    def fault(exchange):
        def flip(exchange, lines, body):
            head = "\r\n".join([*lines, "", ""]).encode("latin-1")
            exchange.client.sendall(head + flipped(body, at))

        exchange.forward(flip)

    return fault


def flips_request(at):
    """One bit of the request's body is changed."""

    def fault(exchange):
        exchange.send_request(flip=at)
        exchange.send_answer()

    return fault


def truncates_answer(after, *, reset=False):
    """The answer's body ends after some bytes, with the connection."""

    def fault(exchange):
        def truncate(exchange, lines, body):
            head = "\r\n".join([*lines, "", ""]).encode("latin-1")
            exchange.client.sendall(head + bytes(body[:after]))
            raise Cut(reset=reset)

        exchange.forward(truncate)

    return fault


def shortens_answer(to):
    """The answer's body has fewer bytes, and its Content-Length says so."""

    def fault(exchange):
        def shorten(exchange, lines, body):
            kept = [line for line in lines if not line.lower().startswith("content-length:")]
            head = "\r\n".join([*kept, f"Content-Length: {to}", "", ""]).encode("latin-1")
            exchange.client.sendall(head + bytes(body[:to]))

        exchange.forward(shorten)

    return fault


def replaces_header(name, value=None):
    """A header of the answer is changed, or left out."""

    def fault(exchange):
        def replace(exchange, lines, body):
            kept = [line for line in lines if not line.lower().startswith(f"{name.lower()}:")]
            if value is not None:
                kept.append(f"{name}: {value}")
            exchange.client.sendall("\r\n".join([*kept, "", ""]).encode("latin-1") + bytes(body))

        exchange.forward(replace)

    return fault


def ignores_range(whole):
    """The whole object comes with 200, whatever range was asked for."""

    def fault(exchange):
        exchange.drain()
        exchange.reply(200, ['ETag: "whole"'], whole)

    return fault


def calls(function):
    """Something happens before the request is handed on."""

    def fault(exchange):
        function()
        exchange.forward()

    return fault
