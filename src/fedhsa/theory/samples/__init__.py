"""What is learnt from samples where the law of the noise is not known."""
