"""Asks Amazon S3 and its kin: composed and signed by botocore, carried by our own transport.

botocore offers a request, finished and signed, to the handlers of its event ``before-send``, and
takes an answer from them in the place of its own transport. So credentials, endpoints, addressing
and signatures are all boto3's, while bodies go straight from and into the caller's memory.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import botocore.awsrequest
import botocore.config
import botocore.exceptions
import botocore.httpsession
import botocore.loaders
import botocore.parsers
import botocore.session
import botocore.utils

from gdsckpt._version import __version__
from gdsckpt.errors import ConfigError, GdsckptError, StoreError
from gdsckpt.store.answers import EXPIRED_CODES, Answer, Call, error_for
from gdsckpt.store.exchange import Request, Response, TransportError
from gdsckpt.store.http import Pool

if TYPE_CHECKING:
    from gdsckpt.config import Config

# Renewals of the credentials without any success between: more would not help.
_RENEWALS_MAX = 3
_ACCESS_KEY = re.compile(r"Credential=([^/,\s]+)")
_SIGNATURE = re.compile(r"Signature=([0-9a-fA-F]+)")


@dataclass(slots=True)
class _Transfer:
    """What goes along with the request that a thread is making.

    Attributes:
        operation: Its name in the model of S3: botocore may ask for others on the way, such as
            ``CreateSession`` of directory buckets.
        into: Where to receive a good answer.
        response: The answer, for what botocore does not tell.
        secrets: Parts of the signed request that no text may show.
    """

    operation: str = ""
    into: memoryview | None = None
    response: Response | None = None
    secrets: tuple[str, ...] = ()


class _Body:
    """A buffer in the dress of a file, as botocore wants it; its own transport never reads it."""

    def __init__(self, view: memoryview) -> None:
        self.view = view.cast("B")

    def __len__(self) -> int:
        return self.view.nbytes

    def __iter__(self) -> Iterator[bytes]:
        raise TypeError("the body is sent from memory")

    def seek(self, offset: int, whence: int = 0) -> int:
        """Stay at the beginning, where botocore and awscrt want it before each attempt."""
        return 0

    def tell(self) -> int:
        """Be at the beginning."""
        return 0

    def read(self, nbytes: int = -1) -> bytes:
        raise TypeError("the body is sent from memory")


class _Raw:
    """The body of an answer in the dress of urllib3's responses."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_args: Any, **_kwargs: Any) -> Iterator[bytes]:
        yield self._body

    def read(self, *_args: Any, **_kwargs: Any) -> bytes:
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        self._body = b""


def _session() -> Any:
    """Make a session, as ``boto3.Session()`` does but for the model of S3.

    That is kept for the next session: to parse it takes 0.1 s of CPU time.
    """
    inner = botocore.session.get_session()
    loader = _loader(inner.get_config_variable("data_path"))
    inner.register_component("data_loader", loader)
    session = boto3.Session(botocore_session=inner)
    loader.search_paths[:] = dict.fromkeys(loader.search_paths)  # boto3 adds its own each time
    return session


@functools.cache
def _loader(data_path: str | None) -> Any:
    return botocore.loaders.create_loader(data_path)


class S3Client:
    """Calls operations of S3 on one bucket. Any thread may use it.

    Args:
        bucket: Its name.
        config: The settings.

    Raises:
        ConfigError: boto3 cannot make a client of these settings and its own.
    """

    def __init__(self, bucket: str, config: Config) -> None:
        self.bucket = bucket
        self.url = f"s3://{bucket}"
        self._config = config
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._generation = 0
        self._renewals = 0
        self._session, self._client = self._made()
        self.endpoint: str = self._client.meta.endpoint_url
        self._check_plain_http(self.endpoint)
        self._proxies: dict[str, str | None] = {}
        self._pool = Pool(float(config.store_timeout_s), self._tls, self._proxy_of)

    def __repr__(self) -> str:
        return f"S3Client({self.url} at {self.endpoint})"

    def call(
        self,
        call: Call,
        operation: str,
        parameters: Mapping[str, Any],
        *,
        body: memoryview | None = None,
        into: memoryview | None = None,
    ) -> tuple[dict[str, Any], Response]:
        """Call one operation.

        Args:
            call: What it is for, for errors.
            operation: Name of the client's method, such as ``get_object``.
            parameters: Its parameters but ``Bucket`` and ``Body``.
            body: What to send.
            into: Where to receive a good answer's body of exactly that size.

        Returns:
            (what botocore makes of the answer, the answer).

        Raises:
            StoreError: Or its children: it was refused, or there was no answer.
            ConfigError: The parameters cannot be sent.
        """
        generation, client = self._generation, self._client
        name = client.meta.method_to_api_mapping[operation]
        transfer = self._threads.transfer = _Transfer(name, into)
        arguments = {"Bucket": self.bucket, **parameters}
        if body is not None:
            arguments["Body"] = _Body(body)
        try:
            parsed = getattr(client, operation)(**arguments)
        except GdsckptError:  # of ours, such as a refusal of plain http
            raise
        except botocore.exceptions.ParamValidationError as error:
            text = f"{call.op} of {self.url}/{call.key} cannot be asked for: {error}"
            raise ConfigError(text) from None
        # The chain would show texts of the server that are cleaned below.
        except TransportError as error:
            refusal = error_for(self.url, call, Answer(None, error.code, str(error)))
            refusal.retryable = error.is_retryable
            raise refusal from None
        except botocore.exceptions.ClientError as error:
            raise self._refusal(call, error, transfer, generation) from None
        except (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.CredentialRetrievalError,
        ) as error:
            raise error_for(self.url, call, Answer(None, "NoCredentials", str(error))) from None
        except botocore.exceptions.BotoCoreError as error:
            kind = type(error).__name__
            raise error_for(self.url, call, Answer(None, kind, str(error))) from None
        # botocore raises a bare ValueError for dates that are none.
        except (botocore.parsers.ResponseParserError, ValueError) as error:
            raise error_for(self.url, call, Answer(None, "MalformedAnswer", str(error))) from None
        finally:
            self._threads.transfer = None
        self._renewals = 0
        if transfer.response is None:
            raise error_for(self.url, call, Answer(None, "ConnectionFailed", "no answer"))
        return parsed, transfer.response

    def interrupt(self) -> None:
        """Break off all calls."""
        self._pool.interrupt()

    def close(self) -> None:
        """Close the connections that are idle."""
        self._pool.close()

    def _made(self) -> tuple[Any, Any]:
        config = self._config
        s3: dict[str, Any] = {"payload_signing_enabled": False}
        if config.addressing_style != "auto":
            s3["addressing_style"] = config.addressing_style
        try:
            session = _session()
            client = session.client(
                "s3",
                endpoint_url=config.endpoint_url or None,
                config=botocore.config.Config(
                    s3=s3,
                    # Retries are gdsckpt/store/retry.py's alone.
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    # Checksums are ours, one header each; the default is a trailer, which many
                    # stores refuse or, worse, store (https://github.com/boto/boto3/issues/4435).
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    user_agent_extra=f"gdsckpt/{__version__}",
                ),
            )
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
            text = f"boto3 cannot open {self.url}: {error}. Correct its configuration."
            raise ConfigError(text, field="endpoint_url") from None
        client.meta.events.register("before-send.s3", self._send)
        return session, client

    def _send(self, request: Any, event_name: str, **_kwargs: Any) -> Any:
        """Carry a signed request; the handler of ``before-send``."""
        self._check_plain_http(request.url)
        transfer: _Transfer = getattr(self._threads, "transfer", None) or _Transfer()
        if not event_name.endswith(f".{transfer.operation}"):
            transfer = _Transfer()
        headers = [(_text(name), _text(value)) for name, value in request.headers.items()]
        transfer.secrets = _secrets_of(dict(headers))
        # No body is held back until the server says that it wants it: an early answer ends it. Host
        # is there only where awscrt signed; the transport has its own, and two are refused.
        headers = [each for each in headers if each[0].lower() not in ("expect", "host")]
        response = self._pool.exchange(
            Request(request.method, request.url, headers, _view_of(request.body), transfer.into)
        )
        transfer.response = response
        return botocore.awsrequest.AWSResponse(
            request.url, response.status, response.headers, _Raw(response.body)
        )

    def _refusal(self, call: Call, error: Any, transfer: _Transfer, generation: int) -> StoreError:
        details: Mapping[str, Any] = error.response.get("Error", {})
        metadata: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
        headers: Mapping[str, str] = metadata.get("HTTPHeaders", {})
        code, text = str(details.get("Code", "")), str(details.get("Message", ""))
        for secret in transfer.secrets:
            text = text.replace(secret, "***")
        region = details.get("Region") or headers.get("x-amz-bucket-region")
        advice = ""
        if region and code in _REGION_CODES:
            advice = f"The bucket is in the region {region}: set AWS_DEFAULT_REGION={region}."
        elif code == "RequestTimeTooSkewed" and "date" in headers:
            advice = f"The store's clock says {headers['date']}: set the clock of this machine."
        answer = Answer(metadata.get("HTTPStatusCode"), code, text)
        refusal = error_for(self.url, call, answer, advice=advice)
        if code in EXPIRED_CODES:
            refusal.retryable = self._renewed(generation)
        return refusal

    def _renewed(self, generation: int) -> bool:
        """Look for fresh credentials, since those of ``generation`` have expired.

        Returns:
            Whether another attempt makes sense.
        """
        with self._lock:
            if generation != self._generation:
                return True  # another thread has done it meanwhile
            if self._renewals >= _RENEWALS_MAX:
                return False
            self._renewals += 1
            # A new session asks the whole chain again: files, the container's service, and so on.
            self._session, self._client = self._made()
            self._generation += 1
            return True

    def _check_plain_http(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https" or self._config.allow_plain_http or _is_loopback(parts.hostname):
            return
        raise ConfigError(
            f"{parts.scheme}://{parts.hostname} would get data unencrypted and without a signature "
            "of its bytes. Use https, or set allow_plain_http where the network is trusted.",
            field="endpoint_url",
        )

    def _tls(self) -> ssl.SSLContext:
        bundle = self._session._session.get_config_variable("ca_bundle")
        if bundle:
            try:
                return ssl.create_default_context(cafile=bundle)
            except OSError as error:
                text = f"AWS_CA_BUNDLE (ca_bundle) is {bundle}, which cannot be used: {error}."
                raise ConfigError(f"{text} Give a file of certificates in PEM format.") from None
        context = ssl.create_default_context()
        # As boto3 does: containers often have no certificates of their own.
        context.load_verify_locations(botocore.httpsession.get_cert_path(True))
        return context

    def _proxy_of(self, url: str) -> str | None:
        parts = urlsplit(url)
        if parts.netloc not in self._proxies:
            proxies = botocore.utils.get_environ_proxies(url)
            self._proxies[parts.netloc] = proxies.get(parts.scheme)
        return self._proxies[parts.netloc]


# Source: Amazon S3 API Reference, "Error responses".
_REGION_CODES = frozenset(
    {
        "301",
        "400",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)


def _is_loopback(host: str | None) -> bool:
    name = (host or "").lower().rstrip(".")
    # RFC 6761, section 6.3: names below localhost are loopback addresses too.
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _view_of(body: Any) -> memoryview | None:
    if body is None or isinstance(body, memoryview):
        return body
    if isinstance(body, _Body):
        return body.view
    return memoryview(body.encode() if isinstance(body, str) else body)


def _secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    by_name = {name.lower(): value for name, value in headers.items()}
    authorization = by_name.get("authorization", "")
    found = [match[1] for match in (_ACCESS_KEY.search(authorization),) if match]
    found += [match[1] for match in (_SIGNATURE.search(authorization),) if match]
    found += [
        value
        for name, value in by_name.items()
        if name in ("x-amz-security-token", "x-amz-s3session-token") and value
    ]
    return tuple(found)
