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
_HTTPS_PORT, _HTTP_PORT = 443, 80
_PATCH = "application/merge-patch+json"


class Stream:
    """Lines of a response that may stay open. `close` ends it from any thread."""

    def __init__(self, connection: http.client.HTTPConnection, response: Any) -> None:
        self._connection, self._response = connection, response
        self._socket = connection.sock

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines with their ends, until the server or `close` ends the response."""
        try:
            while line := self._response.readline(_LONGEST_LINE):
                yield line
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return  # The connection broke, or another thread closed it.
        finally:
            self._connection.close()

    def close(self) -> None:
        """End the response."""
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
        connection, response = self._open(
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
        connection, response = self._open(
            "GET", path, query=query, accept="*/*", seconds=_SILENT_SECONDS
        )
        return Stream(connection, response)

    def _open(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None,
        accept: str,
        seconds: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        url = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "User-Agent": "ddpjob", **self.access.headers}
        data = None
        if body is not None:
            data = json.dumps(body, default=str).encode()
            headers["Content-Type"] = _PATCH if method == "PATCH" else "application/json"
        connection = self._connect()
        try:
            prefix = urlsplit(self.access.server).path
            connection.request(method, prefix + url, body=data, headers=headers)
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            response = connection.getresponse()
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise self._refusal(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._no_answer(error) from error
        except ClusterError:
            connection.close()
            raise
        return connection, response

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
