"""Noiseless rounds as maps of the error, or of everything that a method carries from round to round."""
