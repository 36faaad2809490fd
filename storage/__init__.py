"""What survives: SQLite, Postgres and object stores. Knows nothing of Ray, sockets or models."""
