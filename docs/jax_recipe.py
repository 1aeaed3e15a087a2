"""An LSTM of cupyrnn in JAX: jit, grad, vmap, and Hessian-vector products. It runs on the host."""

import jax
import jax.numpy as jnp
import numpy as np

import cupyrnn


def on_host(function, shapes_of):
    """Return a function of JAX's arrays that calls one of NumPy's, with cupyrnn.jvp as its jvp."""

    def callback(function, shapes, *args):
        def call(*args):
            return function(*jax.tree.map(np.asarray, args))

        return jax.pure_callback(call, shapes, *args, vmap_method="sequential")

    @jax.custom_jvp
    def run(*args):
        return callback(function, shapes_of(*args), *args)

    @run.defjvp
    def run_along(args, tangents):
        def along(args, tangents):
            return cupyrnn.jvp(function, args, tangents)[1]

        # The value by a call of its own: jax.hessian gives the tangent a batch and not the value.
        return run(*args), callback(along, shapes_of(*args), args, tangents)

    return run


def forward(x, cs, h, w, b):
    return tuple(cupyrnn.block_lstm(x, cs, h, w, b, cell_clip=0))


def gradient(x, cs, h, w, b, *rest):
    *out, h_grad = rest
    g = cupyrnn.block_lstm_grad(x, cs, h, w, *out, cs_grad=None, h_grad=h_grad)
    return g.x_grad, g.cs_prev_grad, g.h_prev_grad, g.w_grad, g.b_grad


# x [T, B, I], cs and h [B, H]: seven outputs [T, B, H]. Gradients are like what they are of.
run = on_host(forward, lambda x, cs, *_: [jax.ShapeDtypeStruct((len(x), *cs.shape), x.dtype)] * 7)
run_gradient = on_host(
    gradient, lambda *args: [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args[:5]]
)
lstm = jax.custom_vjp(lambda *args: run(*args)[-1])
lstm.defvjp(
    lambda *args: ((out := run(*args))[-1], (*args, *out)),
    lambda saved, h_grad: run_gradient(*saved, h_grad),
)

if __name__ == "__main__":
    x, state, w, b = jnp.ones((9, 2, 3)), jnp.zeros((2, 4)), jnp.full((7, 16), 0.1), jnp.zeros(16)
    slope = jax.jit(jax.grad(lambda w: (lstm(x, state, state, w, b) ** 2).sum()))
    _, product = jax.jvp(slope, (w,), (jnp.ones_like(w),))  # of the Hessian with a direction
    print("gradient", slope(w)[0, :4], "Hessian times ones", product[0, :4])
