"""The token estimate. It lives in storage, where a stored column depends on it; this is its public place."""

from storage.tokens import estimate_message_tokens, estimate_string_tokens

__all__ = ["estimate_message_tokens", "estimate_string_tokens"]
