"""From YAML text to checked values: parsing with positions, the schema, conversion."""
