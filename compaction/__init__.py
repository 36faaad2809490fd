"""Pure decisions about what to fold into a summary: no files, no clock, no network."""
