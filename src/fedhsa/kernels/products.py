"""Products with one of several matrices, arranged so that many seeds share the work."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .backend import kernel_for


@jax.custom_batching.custom_vmap
def component_product(A: Float[Array, "N d d"], component: Int[Array, ""], theta: Float[Array, " d"]):
    """`A[component] @ theta`.

    When batched over seeds, which share `A` but not `component`, a look-up would copy one matrix per seed. Unless there
    are many more matrices than seeds, it is faster to multiply all seeds by every matrix and then select.
    """
    return A[component] @ theta


@component_product.def_vmap
def _(size, batched, A, component, theta):
    A_batched, component_batched, theta_batched = batched
    if not any(batched):  # differentiation batches tangents alone
        return A[component] @ theta, False
    N = A.shape[-3]
    if A_batched or not theta_batched or 2 * size < N:
        axes = tuple(0 if b else None for b in batched)
        return jax.vmap(lambda A, c, t: A[c] @ t, axes)(A, component, theta), True
    component = component if component_batched else jnp.broadcast_to(component, size)
    arranged = kernel_for("component_products")
    if arranged is not None:
        return arranged(A, component, theta), True
    products = (A.reshape(-1, A.shape[-1]) @ theta.T).reshape(*A.shape[:-1], size)
    chosen = products[0]
    for n in range(1, N):
        chosen = jnp.where(component == n, products[n], chosen)
    return chosen.T, True
