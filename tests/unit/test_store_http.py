"""The transport, against servers that say byte by byte what the test wants."""

import socket
import threading

import pytest

from gdsckpt.store.exchange import Request, TransportError
from gdsckpt.store.http import Pool

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Gives each request the next answer; ``None`` closes the connection."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.num_connections = 0
        self.requests = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while self._answers:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            with connection:
                self._serve(connection)

    def _serve(self, connection):
        while self._answers:
            raw = b""
            while b"\r\n\r\n" not in raw:
                piece = connection.recv(65536)
                if not piece:
                    return
                raw += piece
            head, _, body = raw.partition(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    while len(body) < int(line.split(b":")[1]):
                        body += connection.recv(65536)
            self.requests.append((head, body))
            answer = self._answers.pop(0)
            if answer is None:
                return
            for piece in answer if isinstance(answer, list) else [answer]:
                connection.sendall(piece)

    def close(self):
        self._listener.close()


@pytest.fixture
def exchange():
    """Have the answers given, and give (pool, server, function that makes a request)."""
    made = []

    def start(*answers, timeout_s=5.0):
        server = Server(*answers)
        pool = Pool(timeout_s, lambda: None, lambda _url: None)
        made.extend([server, pool])

        def ask(method="GET", path="/b/k", **options):
            url = f"http://127.0.0.1:{server.port}{path}"
            return pool.exchange(Request(method, url, options.pop("headers", ()), **options))

        return server, ask

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        [bytes([byte]) for byte in OK],
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + OK,
        b"HTTP/1.1 200 \r\ncontent-length:5 \r\n\r\nhello",
        CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 40_000 + b"\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["plain", "bytewise", "100", "102-103", "blanks", "chunked", "trailer", "long"],
)
def test_exchange_answer_is_read_and_the_connection_kept(exchange, answer):
    server, ask = exchange(answer, OK)
    for _ in range(2):
        response = ask()
        assert (response.status, response.body) == (200, b"hello")
    assert server.num_connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["close", "1.0"],
)
def test_exchange_answer_that_ends_the_connection_is_read(exchange, answer):
    server, ask = exchange(answer, OK)
    assert ask().body == b"hello"
    server_knows = threading.Thread(target=ask)
    # The server still waits on the first connection: it sees its end, then accepts the second.
    server_knows.start()
    server_knows.join()
    assert server.num_connections == 2


def test_exchange_answer_without_a_length_lasts_to_the_end(exchange):
    _, ask = exchange([b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"])
    # The server closes: it has no more answers.
    assert ask().body == b"hello"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_exchange_answer_without_a_body_keeps_the_connection(exchange, status):
    server, ask = exchange(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode(), OK)
    assert ask().headers["etag"] == "x"
    assert ask().body == b"hello"
    assert server.num_connections == 1


def test_exchange_answer_to_head_has_a_length_and_no_body(exchange):
    server, ask = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", OK)
    assert ask("HEAD").headers["content-length"] == "500"
    assert ask().body == b"hello"
    assert server.num_connections == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"nonsense\r\n\r\n", "IncompleteRead"),
        (b"HTTP/2 200\r\n\r\n", "IncompleteRead"),
        (b"HTTP/1.1 OK\r\n\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "IncompleteRead"),
        (CHUNKED + b"zz\r\n", "IncompleteRead"),
        (CHUNKED + b"-1\r\n", "IncompleteRead"),
        (CHUNKED + b"fffffffff\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent", "ConnectionFailed"),
        (b"", "ConnectionFailed"),
        (None, "ConnectionFailed"),
    ],
)
def test_exchange_answer_that_is_none_is_an_error(exchange, answer, code):
    _, ask = exchange(answer)
    with pytest.raises(TransportError) as caught:
        ask()
    assert (caught.value.code, caught.value.is_retryable) == (code, True)


def test_exchange_body_goes_into_the_callers_memory(exchange):
    _, ask = exchange(b"HTTP/1.1 206 Part\r\nContent-Length: 5\r\n\r\nhello")
    memory = bytearray(b"-" * 9)
    response = ask(into=memoryview(memory)[2:7])
    assert (response.is_received, response.body) == (True, b"")
    assert memory == b"--hello--"


def test_exchange_large_body_goes_into_the_callers_memory(exchange):
    raw = bytes(range(256)) * 40_000
    head = f"HTTP/1.1 206 Part\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
    server, ask = exchange(head + raw, [head, raw[:300_000], raw[300_000:]], OK)
    for _ in range(2):
        memory = bytearray(len(raw))
        assert ask(into=memoryview(memory)).is_received
        assert memory == raw
    assert ask().body == b"hello"
    assert server.num_connections == 1


@pytest.mark.parametrize("nbytes", [0, 4, 6, 10**12])
def test_exchange_body_of_another_size_is_not_received(exchange, nbytes):
    _, ask = exchange(f"HTTP/1.1 200 OK\r\nContent-Length: {nbytes}\r\n\r\n".encode())
    memory = bytearray(5)
    response = ask(into=memoryview(memory))
    assert (response.status, response.is_received) == (200, False)
    assert memory == bytes(5)


def test_exchange_body_in_chunks_goes_into_the_callers_memory(exchange):
    server, ask = exchange(
        [CHUNKED + b"2;x=y\r\nhe\r\n3\r", b"\nllo\r\n0\r\nTrailer: x\r\n\r\n"], OK
    )
    memory = bytearray(5)
    assert ask(into=memoryview(memory)).is_received
    assert memory == b"hello"
    assert ask().body == b"hello"
    assert server.num_connections == 1


@pytest.mark.parametrize("body", [b"4\r\nhell\r\n0\r\n\r\n", b"6\r\nhello!\r\n0\r\n\r\n"])
def test_exchange_body_in_chunks_of_another_size_is_not_received(exchange, body):
    _, ask = exchange(CHUNKED + body)
    assert not ask(into=memoryview(bytearray(5))).is_received


def test_exchange_error_is_not_received_into_the_callers_memory(exchange):
    _, ask = exchange(b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nError")
    memory = bytearray(5)
    response = ask(into=memoryview(memory))
    assert (response.status, response.body, memory) == (503, b"Error", bytes(5))


def test_exchange_request_has_target_host_headers_and_body(exchange):
    server, ask = exchange(OK)
    body = memoryview(b"0123456789")[2:6]
    headers = [("Content-Length", "4"), ("X-A", "b")]
    ask("PUT", "/b/k%20y?partNumber=1&uploadId=x", headers=headers, body=body)
    head, sent = server.requests[0]
    assert head.split(b"\r\n") == [
        b"PUT /b/k%20y?partNumber=1&uploadId=x HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}".encode(),
        b"Content-Length: 4",
        b"X-A: b",
    ]
    assert sent == b"2345"


def test_exchange_header_with_a_line_break_is_refused(exchange):
    _, ask = exchange(OK)
    with pytest.raises(TransportError) as caught:
        ask(headers=[("X-A", "b\r\nX-C: d")])
    assert (caught.value.code, caught.value.is_retryable) == ("InvalidRequest", False)


def test_exchange_connection_that_the_server_ended_is_not_used_again(exchange):
    server, ask = exchange(OK, None, OK, OK)
    assert ask().body == b"hello"
    with pytest.raises(TransportError):
        ask()
    assert ask().body == b"hello"
    assert server.num_connections == 2


def test_exchange_answer_that_comes_while_sending_ends_the_sending(exchange):
    """The server takes only the beginning of a large body, and answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken = []

    def serve():
        connection, _ = listener.accept()
        with connection:
            taken.append(len(connection.recv(1000)))
            connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nbusy")
            done.wait()

    done = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    pool = Pool(5.0, lambda: None, lambda _url: None)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    body = memoryview(bytes(64 << 20))
    headers = [("Content-Length", str(len(body)))]
    response = pool.exchange(Request("PUT", url, headers, body))
    done.set()
    thread.join()
    listener.close()
    pool.close()
    assert (response.status, response.body) == (503, b"busy")
    assert taken[0] <= 1000


def test_exchange_without_an_answer_in_time_is_a_timeout(exchange):
    never = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    pool = Pool(0.2, lambda: None, lambda _url: None)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with pytest.raises(TransportError) as caught:
        pool.exchange(Request("GET", url, ()))
    never.set()
    listener.close()
    assert (caught.value.code, caught.value.is_retryable) == ("Timeout", True)
    assert "0.2 s" in str(caught.value)
