"""Studies of claims in other papers of the field."""
