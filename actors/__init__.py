"""What acts: sessions, conversations, their actors and the gateway."""
