"""Maps of a round: what one round does to the error on average, and to everything that a method carries."""
