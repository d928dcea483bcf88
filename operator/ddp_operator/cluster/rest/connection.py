"""Send requests to an API server, one HTTP connection for each, and read streams of lines."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from ddp_operator.cluster.errors import ClusterError, ConflictError
from ddp_operator.cluster.rest.kubeconfig import Access

Json = dict[str, Any]
_SECONDS = 30.0
"""Maximum seconds without a byte of a normal response."""
_SILENT_SECONDS = 3600.0
"""Maximum seconds without a byte of a stream. A rank may print nothing for long."""
_LONGEST_LINE = 1 << 20
"""Bytes after which a line is passed on in parts."""
_PIECE = 1 << 16
_HTTPS_PORT, _HTTP_PORT = 443, 80
_PATCH = "application/merge-patch+json"


class Stream:
    """Lines of a response that may stay open. `close` ends it from any thread."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: Any,
        sock: socket.socket | None,
    ) -> None:
        self._connection, self._response = connection, response
        self._socket = sock
        self._left: int | None = response.length
        """Number of bytes that the head promises and that have not arrived, if it promises any."""
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines with their ends, until the server or `close` ends the response.

        A line that the break of the connection cuts is left out.

        Raises:
            ClusterError: The connection broke before the end of the response.
        """
        rest = b""
        try:
            # `readline` of http.client takes a break between two chunks for the end.
            while piece := self._read():
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line + b"\n" for line in lines)
                if len(rest) >= _LONGEST_LINE:
                    yield rest
                    rest = b""
            if self._left and not self._closed:
                raise ClusterError("the log was cut off: the connection broke")
            if rest:
                yield rest
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            if not self._closed:
                raise ClusterError(f"the log was cut off: {_break_text(error)}") from error
        finally:
            self._connection.close()

    def _read(self) -> bytes:
        """Return the bytes that have arrived, or none at the end. Wait for the first one."""
        piece: bytes = self._response.read1(_PIECE)
        if self._left is not None:
            self._left -= len(piece)
        return piece

    def close(self) -> None:
        """End the response."""
        self._closed = True  # Before the end, so that the reader does not call it a break.
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has ended already.


class RestConnection:
    """Sender of requests to one API server. Safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Json | None:
        """Return an object or a list, or None if it does not exist.

        Raises:
            ClusterError: The API server refused the request, or did not answer.
        """
        try:
            return self.call("GET", path, query=query)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND and error.reason:
                return None
            raise

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> Json:
        """Send one request and return the decoded response.

        Raises:
            ConflictError: The server answered 409.
            ClusterError: The server refused the request for another reason, or did not answer.
        """
        connection, response, _ = self._open(
            method, path, body=body, query=query, accept=accept, seconds=_SECONDS
        )
        try:
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from error
        finally:
            connection.close()
        try:
            document = json.loads(text)
        except ValueError as error:
            sentence = f"{self.access.server} is no API server: its answer is not JSON"
            raise ClusterError(sentence) from error
        return document if isinstance(document, dict) else {}

    def stream(self, path: str, query: Mapping[str, str]) -> Stream:
        """Return the lines of a response that may stay open.

        Raises:
            ClusterError: The server refused the request, or did not answer.
        """
        connection, response, sock = self._open(
            "GET", path, query=query, accept="*/*", seconds=_SILENT_SECONDS
        )
        return Stream(connection, response, sock)

    def _open(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None,
        accept: str,
        seconds: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, socket.socket | None]:
        url = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "User-Agent": "ddpjob", **self.access.headers}
        data = None
        if body is not None:
            data = json.dumps(body, default=str).encode()
            headers["Content-Type"] = _PATCH if method == "PATCH" else "application/json"
        try:
            connection = self._connect()
        except ValueError as error:
            raise self._no_answer(error) from error
        try:
            prefix = urlsplit(self.access.server).path
            connection.request(method, prefix + url, body=data, headers=headers)
            # http.client forgets the socket of a response that ends the connection.
            sock = connection.sock
            if sock is not None:
                sock.settimeout(seconds)
            response = connection.getresponse()
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise self._refusal(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._no_answer(error) from error
        except ClusterError:
            connection.close()
            raise
        return connection, response, sock

    def _connect(self) -> http.client.HTTPConnection:
        server, access = urlsplit(self.access.server), self.access
        host = server.hostname or ""
        if access.tls is None:
            return http.client.HTTPConnection(host, server.port or _HTTP_PORT, timeout=_SECONDS)
        port = server.port or _HTTPS_PORT
        proxy = access.proxy or (None if proxy_bypass(host) else getproxies().get("https"))
        context = _Named(access.tls, access.tls_server_name) if access.tls_server_name else None
        tls: Any = context or access.tls
        if proxy is None:
            return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=tls)
        through = urlsplit(proxy)
        connection = http.client.HTTPSConnection(
            through.hostname or "", through.port or _HTTP_PORT, timeout=_SECONDS, context=tls
        )
        connection.set_tunnel(host, port)
        return connection

    def _no_answer(self, error: Exception) -> ClusterError:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {error.verify_message}"
        elif isinstance(error, TimeoutError):
            why = f"no answer within {_SECONDS:.0f} s"
        elif isinstance(error, ValueError) and not isinstance(error, OSError):
            # Its text may quote a header with a credential.
            why = "its address, or that of the proxy, is not valid"
        else:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        sentence = f"the API server {self.access.server} of the context {self.access.context!r}"
        return ClusterError(f"{sentence} cannot be reached: {why}")

    def _refusal(self, response: http.client.HTTPResponse) -> ClusterError:
        """Return an error for a response with an HTTP status of 400 or above."""
        try:
            document = json.loads(response.read())
            message = str(document["message"])
            reason = str(document.get("reason") or HTTPStatus(response.status).phrase)
        except (ValueError, KeyError, TypeError):  # The path is not one of the API.
            message, reason = f"the API server answered HTTP {response.status}", ""
        if response.status == HTTPStatus.UNAUTHORIZED:
            message = (
                f"the API server does not accept the credentials of the context"
                f" {self.access.context!r}; log in again"
            )
        kind = ConflictError if response.status == HTTPStatus.CONFLICT else ClusterError
        return kind(" ".join(message.split()), status=response.status, reason=reason)


def _break_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no byte within {_SILENT_SECONDS:.0f} s"
    return getattr(error, "strerror", None) or "the connection broke"


class _Named:
    """TLS settings that expect another name in the certificate than that of the host."""

    def __init__(self, tls: ssl.SSLContext, name: str) -> None:
        self._tls, self._name = tls, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tls, name)

    def wrap_socket(self, sock: socket.socket, server_hostname: str | None = None) -> ssl.SSLSocket:
        """Start TLS on a connection."""
        del server_hostname
        return self._tls.wrap_socket(sock, server_hostname=self._name)
