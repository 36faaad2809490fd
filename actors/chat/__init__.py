"""Chat: turns of a language model over a session, streamed to clients and stored as they come."""
