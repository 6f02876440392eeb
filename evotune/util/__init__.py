"""Helpers that every folder uses: files, words, commands and processes."""
