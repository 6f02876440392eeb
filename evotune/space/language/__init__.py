"""The expression language: parsing, types, and evaluation of single values and whole columns."""
