"""The WebSocket gateway: sockets in, frames to and from conversations."""
