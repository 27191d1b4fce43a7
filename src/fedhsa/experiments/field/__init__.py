"""Studies of what the field's other papers claim."""
