"""Tests; folders are named by the question they answer."""
