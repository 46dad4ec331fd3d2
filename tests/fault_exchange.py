"""One request through the proxy of faults, and how S3's operations are told apart."""

import select
import socket
from urllib.parse import parse_qs, unquote, urlsplit

_PIECE_BYTES = 256 << 10


class Cut(Exception):
    """The connection to the client is at its end; with a reset, or as if all were well."""

    def __init__(self, *, reset=True):
        super().__init__()
        self.reset = reset


class Exchange:
    """One request of a client and what becomes of it."""

    def __init__(self, proxy, client, upstream):
        self.proxy = proxy
        self.client = client
        self._address = upstream
        self._server = None
        self._buffered = b""

    def run(self):
        """Do it; False where the client has no more requests."""
        try:
            head, self._buffered = receive_head(self.client)
            if not head:
                return False
            self.lines = head.decode("latin-1").split("\r\n")
            self.method, self.target, _ = self.lines[0].split(" ")
            if self.method == "CONNECT":
                self.proxy.fault_for("CONNECT", self.target)
                self.tunnel()
                return False
            if not self.target.startswith("/"):
                parts = urlsplit(self.target)
                self.target = f"{parts.path}?{parts.query}" if parts.query else parts.path
                self.lines[0] = f"{self.method} {self.target} HTTP/1.1"
            length = header_of(self.lines, "content-length")
            self.body_left = int(length or 0) - len(self._buffered)
            fault = self.proxy.fault_for(*operation_of(self.method, self.target))
            if fault is None:
                self.forward()
            else:
                fault(self)
            return True
        finally:
            if self._server is not None:
                self._server.close()

    def tunnel(self):
        """Join the client with the place that it asked for, until either is done."""
        host, _, port = self.target.rpartition(":")
        self._server = socket.create_connection((host, int(port)))
        self.client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        ends = {self.client: self._server, self._server: self.client}
        while True:
            for each in select.select(list(ends), [], [])[0]:
                piece = each.recv(_PIECE_BYTES)
                if not piece:
                    return
                ends[each].sendall(piece)

    def forward(self, change=None):
        """Hand the request to the server and its answer back; ``change(lines, body)`` alters it."""
        self.send_request()
        self.send_answer(change)

    def send_request(self, *, most=None, flip=None):
        """Hand the request on: ``most`` bytes of its body, or all, the byte ``flip`` changed."""
        self._server = socket.create_connection(self._address)
        lines = [line for line in self.lines if not line.lower().startswith("connection:")]
        self._server.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        position = 0
        for piece in self.body():
            if most is not None and position + len(piece) >= most:
                self._server.sendall(piece[: most - position])
                return
            if flip is not None and position <= flip < position + len(piece):
                piece = flipped(piece, flip - position)
            self._server.sendall(piece)
            position += len(piece)

    def body(self):
        """Give the request's body in pieces."""
        if self._buffered:
            piece, self._buffered = self._buffered, b""
            yield piece
        while self.body_left > 0:
            piece = self.client.recv(min(_PIECE_BYTES, self.body_left))
            if not piece:
                raise Cut
            self.body_left -= len(piece)
            yield piece

    def send_answer(self, change=None):
        """Hand the server's answer back."""
        head, rest = receive_head(self._server)
        if not head:
            raise Cut(reset=False)
        lines = [
            line
            for line in head.decode("latin-1").split("\r\n")
            if not line.lower().startswith("connection:")
        ]
        if change is None:
            self.client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + rest)
            while piece := self._server.recv(_PIECE_BYTES):
                self.client.sendall(piece)
            return
        body = bytearray(rest)
        while piece := self._server.recv(_PIECE_BYTES):
            body += piece
        change(self, lines, body)

    def drain(self):
        """Take the request's body and throw it away."""
        for _ in self.body():
            continue

    def reply(self, status, lines=(), body=b""):
        """Answer in the place of the server."""
        head = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *lines, "", ""]
        self.client.sendall("\r\n".join(head).encode("latin-1"))
        if self.method != "HEAD":
            self.client.sendall(body)


def receive_head(connection):
    """Receive up to the end of the headers; gives (head, what came after), empty at the end."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = connection.recv(64 << 10)
        if not piece:
            return b"", b""
        raw += piece
    head, _, rest = raw.partition(b"\r\n\r\n")
    return head, rest


def header_of(lines, name):
    for line in lines[1:]:
        found, _, value = line.partition(":")
        if found.strip().lower() == name:
            return value.strip()
    return None


def flipped(raw, at):
    """Give the bytes with one bit of the byte ``at`` changed."""
    changed = bytearray(raw)
    changed[at] ^= 0x10
    return bytes(changed)


def operation_of(method, target):
    """Give the name of the S3 operation, and the key with its bucket."""
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    path = unquote(parts.path).lstrip("/")
    if "uploads" in query:
        names = {"POST": "CreateMultipartUpload", "GET": "ListMultipartUploads"}
    elif "uploadId" in query:
        names = {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "GET": "ListParts",
            "DELETE": "AbortMultipartUpload",
        }
    elif "list-type" in query:
        names = {"GET": "ListObjectsV2"}
    else:
        names = {
            "PUT": "PutObject",
            "GET": "GetObject",
            "HEAD": "HeadObject",
            "DELETE": "DeleteObject",
        }
    return names.get(method, method), path
