"""Baselines of optional libraries. `library_catalog` names them; none is needed."""
