"""The commands of `ondie`, one file each. Does not own tables or figures."""
