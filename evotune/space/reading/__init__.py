"""Turns YAML text into checked values: parsing with positions, the schema, conversion."""
