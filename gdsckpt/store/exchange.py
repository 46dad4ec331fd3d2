"""One request of HTTP/1.1 and its answer, from and into the caller's memory.

Source of the protocol: RFC 9112.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from gdsckpt.store.streams import Stream

HEAD_MAX_BYTES = 64 << 10
_BODY_MAX_BYTES = 64 << 20
"""A listing of 1,000 objects with the longest keys has 5 MB."""

PORTS = {"http": 80, "https": 443}
"""The ports that an URL and a Host header leave out."""


class TransportError(Exception):
    """A request got no answer, or only part of one.

    Args:
        code: As ``answers.Answer``.
        text: Why.
        is_retryable: Whether the next attempt may do better.
    """

    def __init__(self, code: str, text: str, *, is_retryable: bool = True) -> None:
        super().__init__(text)
        self.code = code
        self.is_retryable = is_retryable


@dataclass(frozen=True, slots=True)
class Request:
    """What to send.

    Attributes:
        method: ``GET`` and so on.
        url: With everything encoded that has to be.
        headers: Name and value; ``Host`` is added.
        body: Bytes to send, or None.
        into: Where to receive the body of a good answer of exactly that many bytes, or None.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: memoryview | None = None
    into: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What came back.

    Attributes:
        status: HTTP status.
        headers: By name in lower case.
        body: Its body; empty where it was received into the caller's memory, or is a good answer
            that does not fit there, which is then not received.
        is_received: Whether the body is in the caller's memory.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    is_received: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes.

    Attributes:
        scheme: ``http`` or ``https``.
        host: Name or address.
        port: Its port.
        proxy: URL of the proxy before it; empty for none.
    """

    scheme: str
    host: str
    port: int
    proxy: str = ""


class Exchange:
    """One request and its answer on one stream.

    Args:
        request: What to send.
        origin: Where.
    """

    def __init__(self, request: Request, origin: Origin) -> None:
        self.origin = origin
        self.is_reusable = False
        self.is_interrupted = False
        self._request = request
        self._stream: Stream | None = None
        self._head = bytearray(16 << 10)
        self._filled = 0

    def use(self, stream: Stream) -> None:
        """Take over the stream to run on."""
        self._stream = stream
        if self.is_interrupted:
            raise ConnectionAbortedError("interrupted")

    def interrupt(self) -> None:
        """Make :meth:`run`, in its thread, end with an error."""
        self.is_interrupted = True
        stream = self._stream
        if stream is not None:
            stream.shut_down()

    def taken_stream(self) -> Stream:
        """Give the stream away, so that :meth:`close` leaves it open."""
        stream, self._stream = self._used, None
        return stream

    def close(self) -> None:
        """Close the stream, if it was not given away."""
        if self._stream is not None:
            self._stream.close()

    @property
    def _used(self) -> Stream:
        if self._stream is None:
            raise ConnectionAbortedError("no stream")
        return self._stream

    def run(self) -> Response:
        """Send the request, receive the answer.

        Raises:
            OSError: The connection broke or stalled.
            TransportError: The answer is cut short, or none of HTTP.
        """
        is_sent = False
        try:
            is_sent = self._send(memoryview(self._request_head())) and (
                self._request.body is None or self._send(self._request.body.cast("B"))
            )
        except (ConnectionError, ssl.SSLError) as error:
            # A server that refuses may say why, and close before the whole request came.
            return self._answer_despite(error)
        status, headers = self._receive_head()
        response = self._receive_body(status, headers)
        keeps = "close" not in headers.get("connection", "").lower()
        self.is_reusable = self.is_reusable and is_sent and keeps and not self.is_interrupted
        return response

    def _answer_despite(self, error: OSError) -> Response:
        try:
            status, headers = self._receive_head()
            response = self._receive_body(status, headers)
        except (OSError, TransportError):
            raise error from None
        self.is_reusable = False
        return response

    def _request_head(self) -> bytes:
        request, parts = self._request, urlsplit(self._request.url)
        target = request.url
        if not (self.origin.proxy and self.origin.scheme == "http"):
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = f"[{self.origin.host}]" if ":" in self.origin.host else self.origin.host
        if self.origin.port != PORTS[self.origin.scheme]:
            host += f":{self.origin.port}"
        headers = [("Host", host), *request.headers]
        if self.origin.proxy and self.origin.scheme == "http":
            headers += proxy_authorization(self.origin.proxy)
        lines = [f"{request.method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        if any("\r" in line or "\n" in line for line in lines):
            raise TransportError("InvalidRequest", "a header has a line break", is_retryable=False)
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _send(self, view: memoryview) -> bool:
        """Send all bytes; False where the answer came first."""
        while view.nbytes:
            sent = self._used.send_some(view)
            if sent == 0:
                return False
            view = view[sent:]
        return True

    def _receive_head(self) -> tuple[int, dict[str, str]]:
        """Receive status and headers of the final answer; 100 (Continue) and its kin are none."""
        while True:
            end = self._head.find(b"\r\n\r\n", 0, self._filled)
            while end < 0:
                self._fill()
                end = self._head.find(b"\r\n\r\n", 0, self._filled)
            status, headers = parsed_head(bytes(self._head[:end]))
            self._drop(end + 4)
            if status >= 200:
                return status, headers

    def _fill(self) -> None:
        """Receive more into the buffer of the head."""
        if self._filled == len(self._head):
            if self._filled >= HEAD_MAX_BYTES:
                raise TransportError("IncompleteRead", "the headers of the answer are too long")
            self._head.extend(bytes(len(self._head)))
        with memoryview(self._head) as view:
            received = self._used.receive_first(view[self._filled :])
        if received == 0:
            raise ConnectionResetError("the server closed the connection without an answer")
        self._filled += received

    def _drop(self, nbytes: int) -> None:
        self._head[: self._filled - nbytes] = self._head[nbytes : self._filled]
        self._filled -= nbytes

    def _receive_body(self, status: int, headers: Mapping[str, str]) -> Response:
        into = self._request.into
        if self._request.method == "HEAD" or status in (204, 304):
            self.is_reusable = True
            return Response(status, headers)
        if "chunked" in headers.get("transfer-encoding", "").lower():
            if status < 300 and into is not None:
                self.is_reusable = self._receive_chunks_into(into.cast("B"))
                return Response(status, headers, is_received=self.is_reusable)
            body = self._receive_chunked()
            self.is_reusable = True
            return Response(status, headers, body)
        nbytes = _content_length(headers)
        if status < 300 and into is not None:
            if nbytes != into.nbytes:
                return Response(status, headers)
            self._receive_exactly(into.cast("B"))
            self.is_reusable = True
            return Response(status, headers, is_received=True)
        if nbytes is None:
            return Response(status, headers, self._receive_to_end())
        if nbytes > _BODY_MAX_BYTES:
            raise TransportError("IncompleteRead", f"the answer has {nbytes} bytes, too many")
        body_buffer = bytearray(nbytes)
        self._receive_exactly(memoryview(body_buffer))
        self.is_reusable = True
        return Response(status, headers, bytes(body_buffer))

    def _receive_exactly(self, view: memoryview) -> None:
        nbytes = min(view.nbytes, self._filled)
        view[:nbytes] = self._head[:nbytes]
        self._drop(nbytes)
        while nbytes < view.nbytes:
            received = self._used.receive_some(view[nbytes:])
            if received == 0:
                raise TransportError(
                    "IncompleteRead", f"{nbytes} of {view.nbytes} bytes came, then the end"
                )
            nbytes += received
            if self.is_interrupted:
                raise ConnectionAbortedError("interrupted")

    def _receive_chunked(self) -> bytes:
        body = bytearray()
        for nbytes in self._chunk_sizes():
            if len(body) + nbytes > _BODY_MAX_BYTES:
                raise TransportError("IncompleteRead", "the answer is too long")
            chunk = bytearray(nbytes)
            self._receive_exactly(memoryview(chunk))
            body += chunk
        return bytes(body)

    def _receive_chunks_into(self, view: memoryview) -> bool:
        """Receive a body that has exactly the size of ``view``; False where it has another."""
        done = 0
        for nbytes in self._chunk_sizes():
            if done + nbytes > view.nbytes:
                return False
            self._receive_exactly(view[done : done + nbytes])
            done += nbytes
        return done == view.nbytes

    def _chunk_sizes(self) -> Iterator[int]:
        """Give the size of each chunk, whose bytes the caller then receives.

        Source: RFC 9112, section 7.1.
        """
        while nbytes := self._chunk_size():
            yield nbytes
            if self._receive_line():
                raise TransportError("IncompleteRead", "the answer has a bad chunk")
        while self._receive_line():
            continue

    def _chunk_size(self) -> int:
        text = self._receive_line().split(b";")[0].strip()
        try:
            nbytes = int(text, 16)
        except ValueError:
            nbytes = -1
        if nbytes < 0:
            raise TransportError("IncompleteRead", "the answer has a bad chunk")
        return nbytes

    def _receive_line(self) -> bytes:
        end = self._head.find(b"\r\n", 0, self._filled)
        while end < 0:
            self._fill()
            end = self._head.find(b"\r\n", 0, self._filled)
        line = bytes(self._head[:end])
        self._drop(end + 2)
        return line

    def _receive_to_end(self) -> bytes:
        body = bytearray(self._head[: self._filled])
        piece = memoryview(bytearray(64 << 10))
        while received := self._used.receive_first(piece):
            body += piece[:received]
            if len(body) > _BODY_MAX_BYTES:
                raise TransportError("IncompleteRead", "the answer is too long")
        return bytes(body)


def parsed_head(raw: bytes) -> tuple[int, dict[str, str]]:
    """Take status and headers, by name in lower case, out of the head of an answer."""
    lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
        raise TransportError("IncompleteRead", "the answer is none of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.0" and "connection" not in headers:
        headers["connection"] = "close"
    return int(status), headers


def _content_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise TransportError("IncompleteRead", "the answer has a bad Content-Length")
    return int(text)


def proxy_authorization(proxy: str) -> list[tuple[str, str]]:
    """Give the header with the name and password of a proxy's URL; none where it has no name."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return []
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [("Proxy-Authorization", "Basic " + base64.b64encode(pair.encode()).decode())]
