"""One conversation's life, without Ray and without sockets."""
