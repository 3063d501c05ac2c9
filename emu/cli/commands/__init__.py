"""The commands of `ondie` that have a file of their own. Does not own tables or figures."""
