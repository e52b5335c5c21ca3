"""Whom a server lets in: what is refused before anything is started, because somebody else could use it. Pure."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.serve.door.listeners import is_loopback
from holdfast.serve.options import ServeOptions

__all__ = ["check_exposure", "overheard"]


def check_exposure(options: ServeOptions) -> None:
    """Refuse to listen beyond this machine without a token. Raises UsageError."""
    if options.token is None and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host}: whoever reaches this machine could use the model. Add --token-file FILE (a new "
            "one is made where there is none), and --certificate and --key for TLS, without which the token can be "
            "overheard; or listen on 127.0.0.1."
        )
    if options.admin_port is None and options.admin_grpc_port is None:
        return
    if options.admin_token is None and (options.token is not None or not is_loopback(options.host)):
        raise UsageError(
            "The control plane would be open to whoever reaches it, and it can take models away. Add "
            "--admin-token-file FILE (a new one is made where there is none)."
        )
    if options.admin_token is not None and options.admin_token == options.token:
        raise UsageError(
            "--admin-token-file and --token-file have the same token: whoever may use a model could take it away. Let "
            "one of them name a file that is not there yet; it is made."
        )


def overheard(options: ServeOptions) -> str:
    """What is to be said of a token that travels in clear; nothing where none does."""
    if options.token is None or options.certificate is not None or is_loopback(options.host):
        return ""
    return "warning: without TLS the token can be overheard on its way; add --certificate and --key"
