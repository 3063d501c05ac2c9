"""The host: its machine and its links."""
