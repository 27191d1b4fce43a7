"""The studies of the paper's figures and claims."""
