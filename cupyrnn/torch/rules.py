"""
The ops of a function, and the rules by which they are differentiated.

Each function becomes four ops, from which PyTorch gets first and second derivatives, in forward and
backward mode. With F the function of its inputs p, and G(p, y) the gradient of sum(y*F(p))::

    forward   p -> F, and the results that G needs
    backward  p, y -> G
    jvp       p, dp -> the tangent of F
    second    p, y, dp, dy -> the tangent of F, G, the tangent of G

The last two are calls with dual numbers. The matrix of second derivatives is symmetric, so these
ops also compute the gradients of each op. With w the gradients of its results::

    forward   G(p, w)
    backward  by p the tangent of G along dp = w, by y that of F
    jvp       by p the tangent of G with y = w, by dp G(p, w)
"""

from .._typing import NamedTuple

# Groups with a tensor for each input.
OF_INPUTS = frozenset({"p", "dp", "G", "dG"})


class Rule(NamedTuple):
    """
    An op of a function, and the ops that differentiate it, by the letters of groups of tensors.

    Groups of arguments are p (inputs), s (saved results), y (gradients of outputs), dp and dy
    (tangents); results are F (all results), G (gradients of inputs), dF and dG (tangents). In the
    arguments of a derivative w are the gradients of the op's results, and 0 are no tensors.
    """

    takes: str
    gives: str
    transposed_by: tuple[str, str] = ("", "")  # the op, and its arguments
    gradients: tuple[tuple[str, str], ...] = ()  # of groups of arguments: groups of its results
    differentiated_by: tuple[str, str, str] = ("", "", "")  # the op, its arguments, its result


RULES = {
    "forward": Rule("p", "F", ("backward", "p s w"), (("p", "G"),), ("jvp", "p dp", "dF")),
    "backward": Rule(
        *("p s y", "G", ("second", "p y w 0"), (("p", "dG"), ("y", "dF"))),
        ("second", "p y dp dy", "dG"),
    ),
    "jvp": Rule("p dp", "dF", ("second", "p w dp 0"), (("p", "dG"), ("dp", "G"))),
    "second": Rule("p y dp dy", "dF G dG"),
}
