"""The commands of `ondie`, one module for each. Does not own tables or figures."""
