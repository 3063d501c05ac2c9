"""The flash back end: geometry, timing, dies and channels, mapping, collection, stored bytes."""
