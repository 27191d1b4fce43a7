"""A federation between real sites on Flower: its processes, keys and messages."""
