"""Baselines of optional libraries. `catalog` names them; none is needed."""
