"""Who may use a store, and over what: credentials, permissions, secrets, TLS, proxies."""

import json
import logging
import re
import shutil
import ssl
import subprocess
import traceback
import zlib

import fault_proxy as harm
import pytest
from fault_proxy import FOREVER, FaultProxy
from seaweed import BUCKET, point_boto3_at

from gdsckpt.config import Config
from gdsckpt.demo.seaweed import Identity, new_identity
from gdsckpt.errors import AccessDeniedError, ConfigError, StoreError
from gdsckpt.store import open_store
from gdsckpt.store.base import PART_MIN_BYTES

pytestmark = pytest.mark.s3

URL = f"s3://{BUCKET}/access/object"
KEY = "access/object"
BODY = b"hello"
PART = bytes(PART_MIN_BYTES)
SECRET = "swordfish-in-the-session-token"


@pytest.fixture
def proxy(seaweed):
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture
def opened(seaweed, monkeypatch, tmp_path):
    """Open stores, as an identity and through a proxy, and close them in the end."""
    stores = []

    def open_as(identity=None, *, endpoint=None, **settings):
        point_boto3_at(seaweed, monkeypatch, tmp_path, identity=identity, endpoint=endpoint)
        store, _ = open_store(URL, Config(store_attempts_max=3, **settings))
        stores.append(store)
        return store

    yield open_as
    for store in stores:
        store.close()


def put(store, key=KEY, raw=BODY):
    return store.put(key, memoryview(raw), crc32=zlib.crc32(raw))


def read(store, key=KEY, nbytes=len(BODY)):  # noqa: B008 - a constant
    memory = bytearray(nbytes)
    store.get_range(key, 0, memoryview(memory))
    return bytes(memory)


def put_part(store, upload, number):
    return store.put_part(upload, number, memoryview(PART), crc32=zlib.crc32(PART))


def denial(call, code):
    with pytest.raises(AccessDeniedError) as caught:
        call()
    error = caught.value
    assert isinstance(error, PermissionError)
    assert (error.code, error.retryable) == (code, False)
    return error


def everything_about(error, records):
    """Give all text that an error and the log show."""
    shown = [repr(error), json.dumps(error.fields), *traceback.format_exception(error)]
    return "\n".join([*shown, *(record.getMessage() for record in records)])


CALLS = {
    "head": lambda store: store.head(KEY),
    "get_range": read,
    "put": put,
    "create_upload": lambda store: store.create_upload(KEY),
    "list_page": lambda store: store.list_page("access/"),
    "delete": lambda store: store.delete("access/other"),
}


@pytest.mark.parametrize("op", CALLS)
def test_unknown_access_key_is_denied(opened, op):
    error = denial(lambda: CALLS[op](opened(new_identity("stranger"))), "InvalidAccessKeyId")
    assert (error.op, error.status, error.attempts) == (op, 403, 1)


@pytest.mark.parametrize("op", CALLS)
def test_wrong_secret_is_denied_and_shown_nowhere(opened, seaweed, caplog, op):
    owner = seaweed.identities[0]
    wrong = Identity("owner", owner.access_key, "swordfish" * 4)
    caplog.set_level(logging.DEBUG, "gdsckpt")
    store = opened(wrong)
    error = denial(lambda: CALLS[op](store), "SignatureDoesNotMatch")
    shown = everything_about(error, caplog.records) + repr(store)
    assert "swordfish" not in shown
    assert owner.access_key not in shown


def test_secrets_that_the_server_says_back_are_taken_out(opened, proxy, monkeypatch, caplog):
    def says_back(exchange):
        exchange.drain()
        said = "\n".join(exchange.lines)
        message = said.replace("&", "&amp;").replace("<", "&lt;")
        exchange.reply(403, body=harm.error_body("AccessDenied", message))

    caplog.set_level(logging.DEBUG, "gdsckpt")
    store = opened(endpoint=proxy.endpoint)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    store, _ = open_store(URL, Config())
    proxy.harm("*", says_back, times=FOREVER)
    error = denial(lambda: put(store), "AccessDenied")
    shown = everything_about(error, caplog.records)
    assert "X-Amz-Security-Token: ***" in shown
    assert "Signature=***" in shown
    assert SECRET not in shown


def test_presigned_urls_in_answers_are_cleaned(opened, proxy):
    store = opened(endpoint=proxy.endpoint)
    message = "see https://user:pass@host/key?X-Amz-Signature=abc&amp;X-Amz-Credential=def"
    proxy.harm("PutObject", harm.answers(403, "AccessDenied", message=message))
    error = denial(lambda: put(store), "AccessDenied")
    assert "https://***@host/key?X-Amz-Signature=***&X-Amz-Credential=***" in str(error)


def test_no_credentials_at_all_is_denied_and_says_what_to_set(opened, monkeypatch):
    store = opened()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store, _ = open_store(URL, Config())
    error = denial(lambda: store.head(KEY), "NoCredentials")
    assert error.status is None
    assert "AWS_ACCESS_KEY_ID" in str(error)


@pytest.mark.parametrize("op", ["put", "create_upload", "delete"])
def test_identity_that_may_only_read_is_denied_writing(opened, seaweed, op):
    put(opened())
    store = opened(seaweed.identities[1])
    assert read(store) == BODY
    error = denial(lambda: CALLS[op](store), "AccessDenied")
    assert error.op == op
    assert KEY in str(error) or op == "delete"


@pytest.mark.parametrize("op", ["head", "get_range", "list_page"])
def test_identity_that_may_only_write_is_denied_reading(opened, seaweed, op):
    store = opened(seaweed.identities[2])
    put(store)
    error = denial(lambda: CALLS[op](store), "AccessDenied")
    assert error.op == op


def is_signed_by(exchange, identity):
    return any(identity.access_key in line for line in exchange.lines)


def test_credentials_that_expire_in_mid_upload_are_looked_up_again(
    opened, proxy, seaweed, monkeypatch, tmp_path
):
    """Whoever rotates the credentials writes the new ones to the file, as many tools do."""
    owner = seaweed.identities[0]
    old = new_identity("rotated")
    file = tmp_path / "credentials"

    def write(identity):
        file.write_text(
            f"[default]\naws_access_key_id={identity.access_key}\n"
            f"aws_secret_access_key={identity.secret_key}\n"
        )

    def expired(exchange):
        if is_signed_by(exchange, old):
            harm.answers(400, "ExpiredToken")(exchange)
        else:
            exchange.forward()

    opened(endpoint=proxy.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write(owner)
    store, _ = open_store(URL, Config())
    upload = store.create_upload(KEY)
    first = put_part(store, upload, 1)
    write(old)
    store_with_old, _ = open_store(URL, Config())
    write(owner)
    proxy.harm("*", expired, times=FOREVER)
    second = put_part(store_with_old, upload, 2)
    raw = PART + PART
    store_with_old.complete_upload(upload, [first, second], nbytes=len(raw), crc32=zlib.crc32(raw))
    assert store.head(KEY).nbytes == len(raw)
    # Once for the first request; then the new credentials are kept.
    assert len(proxy.ops("UploadPart")) == 3


def test_credentials_that_have_expired_for_good_are_denied_soon(opened, proxy):
    store = opened(endpoint=proxy.endpoint)
    proxy.harm("*", harm.answers(400, "ExpiredToken"), times=FOREVER)
    with pytest.raises(AccessDeniedError) as caught:
        put(store)
    assert caught.value.code == "ExpiredToken"
    assert "Renew the credentials" in str(caught.value)
    assert len(proxy.ops()) == 3


@pytest.mark.parametrize("endpoint", ["http://192.0.2.1:9000", "http://store.example"])
@pytest.mark.parametrize("where", ["settings", "environment"])
def test_plain_http_beyond_this_machine_is_refused(seaweed, monkeypatch, tmp_path, endpoint, where):
    point_boto3_at(seaweed, monkeypatch, tmp_path, endpoint=endpoint)
    if where == "settings":
        monkeypatch.delenv("AWS_ENDPOINT_URL")
    settings = {"endpoint_url": endpoint} if where == "settings" else {}
    with pytest.raises(ConfigError) as caught:
        open_store(URL, Config(**settings))
    assert caught.value.field == "endpoint_url"
    assert "allow_plain_http" in str(caught.value)
    assert open_store(URL, Config(allow_plain_http=True, **settings))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_plain_http_to_this_machine_is_allowed(seaweed, monkeypatch, tmp_path, host):
    point_boto3_at(seaweed, monkeypatch, tmp_path)
    assert open_store(URL, Config(endpoint_url=f"http://{host}:9000"))


def test_plain_http_that_a_redirect_leads_to_is_refused(opened, proxy):
    store = opened(endpoint=proxy.endpoint)
    client = store._inner._inner._client
    with pytest.raises(ConfigError):
        client._check_plain_http("http://elsewhere.example/bucket/key")


def test_endpoint_setting_comes_before_the_environment(seaweed, monkeypatch, tmp_path):
    point_boto3_at(seaweed, monkeypatch, tmp_path, endpoint="http://127.0.0.1:1")
    store, _ = open_store(URL, Config(endpoint_url=seaweed.endpoint))
    put(store)
    assert read(store) == BODY
    store.close()


@pytest.mark.parametrize(
    ("style", "path"),
    [("path", f"{BUCKET}/{KEY}"), ("auto", f"{BUCKET}/{KEY}"), ("virtual", KEY)],
)
def test_addressing_style_puts_the_bucket_into_path_or_host(
    seaweed, monkeypatch, tmp_path, proxy, style, path
):
    point_boto3_at(seaweed, monkeypatch, tmp_path)
    proxy.harm("*", harm.answers(403, "AccessDenied"), times=FOREVER)
    endpoint = f"http://localhost:{proxy.port}"
    store, _ = open_store(URL, Config(endpoint_url=endpoint, addressing_style=style))
    denial(lambda: put(store), "AccessDenied")
    assert [seen.key for seen in proxy.seen] == [path]
    store.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that its own authority signed: (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing, which makes the certificate")
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def tls_proxy(seaweed, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with FaultProxy(seaweed.port, tls=context) as proxy:
        yield proxy


@pytest.fixture
def tls_store(opened, tls_proxy, certificate, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    return opened(endpoint=tls_proxy.endpoint, store_timeout_s=1)


def upload_one_part(store):
    upload = store.create_upload(KEY)
    part = put_part(store, upload, 1)
    store.complete_upload(upload, [part], nbytes=len(PART), crc32=zlib.crc32(PART))
    assert read(store, nbytes=len(PART)) == PART


def test_tls_object_is_sent_and_received(tls_store):
    upload_one_part(tls_store)


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        ("UploadPart", harm.answers(503, "SlowDown", drain=False)),
        ("UploadPart", harm.resets(after=1000)),
        ("UploadPart", harm.takes_no_more(1000)),
        ("UploadPart", harm.drops_answer()),
        ("GetObject", harm.truncates_answer(100_000)),
        ("GetObject", harm.truncates_answer(100_000, reset=True)),
        ("GetObject", harm.stalls_answer(100_000)),
        ("GetObject", harm.hangs()),
    ],
    ids=["503", "reset", "takes-no-more", "lost", "ends", "reset-in-body", "stalls", "hangs"],
)
def test_tls_fault_that_passes_gives_the_right_object(tls_store, tls_proxy, op, fault):
    tls_proxy.harm(op, fault)
    upload_one_part(tls_store)
    assert len(tls_proxy.ops(op)) == 2


def test_tls_interrupt_ends_a_call(tls_store, tls_proxy):
    put(tls_store)

    def interrupts(exchange):
        tls_store.interrupt()
        exchange.proxy.wait_closed()

    tls_proxy.harm("GetObject", interrupts)
    with pytest.raises(StoreError) as caught:
        read(tls_store)
    assert (caught.value.code, caught.value.attempts) == ("Interrupted", 1)


def test_tls_certificate_that_is_not_trusted_is_an_error_at_once(opened, tls_proxy):
    store = opened(endpoint=tls_proxy.endpoint)
    with pytest.raises(StoreError) as caught:
        put(store)
    assert (caught.value.code, caught.value.attempts) == ("ConnectionFailed", 1)
    assert "AWS_CA_BUNDLE" in str(caught.value)
    assert tls_proxy.seen == []


@pytest.mark.parametrize("text", [None, "no certificate"], ids=["missing", "none"])
def test_tls_authorities_that_cannot_be_read_are_named(
    opened, tls_proxy, monkeypatch, tmp_path, text
):
    bundle = tmp_path / "authorities.pem"
    if text is not None:
        bundle.write_text(text)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with pytest.raises(ConfigError, match=re.escape(str(bundle))):
        put(opened(endpoint=tls_proxy.endpoint))


def test_forward_proxy_is_used_for_plain_http(opened, proxy, seaweed, monkeypatch):
    store = opened()
    monkeypatch.setenv("http_proxy", f"http://user:swordfish@127.0.0.1:{proxy.port}")
    put(store)
    assert read(store) == BODY
    assert [seen.op for seen in proxy.seen] == ["PutObject", "GetObject"]


def test_forward_proxy_is_used_for_tls(tls_store, tls_proxy, proxy, monkeypatch):
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    put(tls_store)
    assert read(tls_store) == BODY
    assert [(seen.op, seen.key) for seen in proxy.seen] == [
        ("CONNECT", f"127.0.0.1:{tls_proxy.port}")
    ]


def test_forward_proxy_is_not_used_where_no_proxy_says_so(opened, proxy, monkeypatch):
    store = opened()
    monkeypatch.setenv("http_proxy", proxy.endpoint)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    put(store)
    assert proxy.seen == []
