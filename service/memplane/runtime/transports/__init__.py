"""Transports: HTTP between hosts, a Unix socket between processes of one machine. Both carry envelopes."""

from memplane.runtime.transports.http_app import InvokeApp, Receiver, create_http_app
from memplane.runtime.transports.http_client import HttpTransport
from memplane.runtime.transports.http_server import HttpServer, serve_http
from memplane.runtime.transports.ipc import IpcServer, IpcTransport, serve_ipc

__all__ = [
    "HttpServer",
    "HttpTransport",
    "InvokeApp",
    "IpcServer",
    "IpcTransport",
    "Receiver",
    "create_http_app",
    "serve_http",
    "serve_ipc",
]
