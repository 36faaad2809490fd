"""Where conversations live: the only package that imports Ray."""
