"""Who may look at the dashboard, and what requests and answers may be like."""

from radt.frontend.access.access import (
    MIN_TOKEN_LENGTH,
    TOKEN_VARIABLE,
    Access,
    Auth,
)
from radt.frontend.access.names import is_loopback

__all__ = ["MIN_TOKEN_LENGTH", "TOKEN_VARIABLE", "Access", "Auth", "is_loopback"]
