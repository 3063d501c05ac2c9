"""The commands of `ondie`, one module for each command. Does not own tables or figures."""
