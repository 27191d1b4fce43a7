"""The version, in its own module so that every layer can import it."""

__version__ = "0.2.0"


def versions() -> dict[str, str]:
    """The versions of this package and of the packages that determine the numbers."""
    import platform

    import jax
    import numpy

    found = {"fedhsa": __version__, "jax": jax.__version__, "numpy": numpy.__version__}
    return found | {"python": platform.python_version()}
