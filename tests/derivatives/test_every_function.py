"""
jvp of every function that a user may call is exact or refused. There is no third outcome.

Each row is an expression and the functions f that it is evaluated for, of x, which has a tangent,
and y = 2 - x, which has another. What is exact has the value of the plain call to the last bit and
the slope of central differences; what is refused raises an error.
"""

from __future__ import annotations

import inspect
import math
import operator
import warnings
from collections.abc import Iterator
from typing import Any

import needs
import numpy as np
import pytest

import cupyrnn
from cupyrnn.derivatives.holder import Traced
from cupyrnn.derivatives.rules import SLOPES

pytestmark = pytest.mark.skipif(np.__version__ < "2", reason="has the functions of NumPy 2")

EXACT = {
    "f(x)": "abs absolute acos acosh all amax amin any arccos arcsin arcsinh arctan arctanh argmax"
    " argmin argsort argwhere around array2string array_repr array_str asin asinh atan atanh"
    " atleast_1d atleast_2d atleast_3d average block broadcast_arrays cbrt ceil column_stack"
    " common_type concat concatenate conj conjugate copy cos cosh count_nonzero cumprod cumproduct"
    " cumsum deg2rad degrees diag diagflat diagonal diff dstack ediff1d exp exp2 expm1 fabs fix"
    " flatnonzero flip fliplr flipud floor gradient hstack imag iscomplex iscomplexobj isfinite"
    " isinf isnan isneginf isposinf isreal isrealobj isscalar iterable lexsort log log10 log1p log2"
    " logical_not matrix_transpose max mean meshgrid min min_scalar_type nan_to_num ndim negative"
    " nonzero ones_like permute_dims positive prod ptp rad2deg radians ravel real real_if_close"
    " reciprocal result_type rint rot90 round round_ row_stack shape sign signbit sin sinh size"
    " sort sqrt square squeeze stack std sum tan tanh trace transpose trapezoid trapz tril triu"
    " trunc"
    " unstack var vstack where zeros_like linalg.det linalg.diagonal linalg.inv linalg.matrix_rank"
    " linalg.matrix_transpose linalg.norm linalg.trace",
    "f(x + 1)": "arccosh acosh",
    "f(x - 0.5)": "abs absolute arccos arcsin arctanh cbrt fabs negative sinh tan tanh",
    "f(x.copy(), out=np.empty_like(x))": " ".join(
        f.__name__ for f in SLOPES if f is not np.arccosh
    ),
    "f(x + 1, out=np.empty_like(x))": "arccosh",
    "f(x[0])": "vander cumulative_sum cumulative_prod",
    "f(x, y)": "add allclose append arctan2 array_equal array_equiv atan2 copysign cross divide dot"
    " equal extract float_power floor_divide fmod greater greater_equal hypot in1d inner isclose"
    " isin kron less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor matmul"
    " matvec maximum may_share_memory minimum mod multiply not_equal outer pow power remainder"
    " shares_memory subtract tensordot true_divide vdot vecdot vecmat linalg.cross linalg.matmul"
    " linalg.solve linalg.tensordot linalg.vecdot",
    "f(x[0], y[1])": "convolve correlate linalg.outer",
    "f(x, 1)": "argpartition array_split delete expand_dims hsplit ldexp pad repeat resize roll"
    " rollaxis split take tile vsplit linalg.matrix_power",
    "f([x, y])": "linalg.multi_dot",
    "f(x, 0.4, y)": "clip",
    "f(a=x, a_min=0.4, a_max=y)": "clip",
    "f(a=x)": "max min ptp std var",
    "f(x, (2, 3, 3))": "broadcast_to",
    "f(x, 0, 1)": "moveaxis swapaxes",
    "f(x, 9)": "reshape",
    "f(np.array([0, 1, 0]), [x[0], y[1]])": "choose",
    "f([True, False, True], x)": "compress",
    "f(x.reshape(1, 3, 3), 3)": "dsplit",
    "f('ij,kj->ik', x, y)": "einsum",
    "f(x, 1, y[0])": "insert",
    "f([x > 0.5, x > 0.3], [x, y * x], 2 * x)": "select",
    "f(x, np.array([[0], [1], [2]]), 1)": "take_along_axis",
    "f(x[0], np.array([0.2, 0.6]))": "digitize",
    "f(np.array([0.2, 0.6]), x)": "searchsorted",
    "f(x.dtype, float)": "can_cast issubdtype promote_types",
    "f(x, y[0])": "full_like",
    "f(x).fill(0) or x": "empty_like",
    "f(lambda i: x[0] * i, (3,))": "fromfunction",
    "f(3, lambda n, k: x)": "mask_indices",
    "(z := np.zeros_like(x), f(z, x))[0]": "copyto",
    "(z := np.zeros_like(x), f(z, src=x))[0]": "copyto",
    "(z := np.zeros_like(x), f(z, x[0]))[0]": "fill_diagonal",
    "(z := np.zeros_like(x), f(z, val=x[0], wrap=True))[0]": "fill_diagonal",
    "(z := np.zeros_like(x), f(z, np.array([[1], [2], [0]]), x[:, :1], 1))[0]": "put_along_axis",
    "f((3, 3), like=x).fill(1) or x": "zeros ones",
    "f((3, 3), 2.0, like=x) * x": "full",
}
REFUSED = {
    "f(x)": "alltrue angle arange array asanyarray asarray asarray_chkfinite asfarray asmatrix"
    " ascontiguousarray asfortranarray bartlett binary_repr bincount bitwise_count bitwise_invert"
    " bitwise_not blackman broadcast_shapes corrcoef cov datetime_as_string datetime_data"
    " diag_indices diag_indices_from disp empty eye format_float_positional fastCopyAndTranspose"
    " format_float_scientific frexp from_dlpack frombuffer fromstring hamming hanning histogram"
    " histogram_bin_edges histogramdd i0 identity indices invert is_busday isfortran isnat ix_"
    " median mintypecode modf msort nanargmax nanargmin nancumprod nancumsum nanmax nanmean"
    " nanmedian nanmin nanprod nanstd nansum nanvar ones packbits poly polyder polyint product"
    " require roots sinc sometrue sort_complex spacing tri tril_indices tril_indices_from"
    " trim_zeros triu_indices triu_indices_from typename unique unique_all unique_counts"
    " unique_inverse"
    " unique_values unpackbits unwrap zeros linalg.cholesky linalg.cond linalg.eig linalg.eigh"
    " linalg.eigvals linalg.eigvalsh linalg.matrix_norm linalg.pinv linalg.qr linalg.slogdet"
    " linalg.svd linalg.svdvals linalg.tensorinv linalg.vector_norm",
    "f(x, y)": "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor"
    " busday_count busday_offset divmod einsum_path fmax fmin gcd geomspace heaviside histogram2d"
    " intersect1d lcm left_shift linspace logspace nextafter polyadd polydiv polymul polysub"
    " polyval right_shift setdiff1d setxor1d union1d linalg.lstsq linalg.tensorsolve",
    "f(x, 1)": "base_repr kaiser nanpercentile nanquantile partition percentile quantile"
    " ravel_multi_index unravel_index full",
    "f([[x, y]])": "bmat",
    "f(x, 'f4')": "astype",
    "f(np.sum, 1, x)": "apply_along_axis",
    "f(np.sum, x, [0])": "apply_over_axes",
    "f(x[0], float)": "fromiter",
    "f(lambda a: a, 1, 1)(x)": "frompyfunc",
    "f(x[0], x[0], x[0])": "interp",
    "f([x, y], [[0], [1]])": "nested_iters",
    "f(x, [x > 0], [1])": "piecewise",
    "f(x, x > 0, [1.0])": "place putmask",
    "f(x, [0], [1.0])": "put",
    "f(np.zeros(9), range(9), x)": "put",
    "f(np.zeros((3, 3)), x > 0, x)": "place putmask",
    "f(np.zeros((3, 3)), x)": "copyto",
    "f(np.zeros((3, 3)), x[0])": "fill_diagonal",
    "f(x[0], x[1], 1)": "polyfit",
    "f(x, y, out=np.zeros((3, 3)))": "add multiply subtract matmul dot maximum power",
    "f(x, out=np.zeros((3, 3)))": "exp tanh sqrt clip cumsum",
    "f(x, where=x > 0.5)": "exp tanh sqrt",
    "f(np.zeros(3), [0, 1, 2], x[0])": "add.at multiply.at",
    "f(x[0], [0, 2])": "multiply.reduceat",
}
# Functions without array arguments, or whose results do not depend on their numbers.
WITHOUT_NUMBERS = """
add_docstring add_newdoc add_newdoc_ufunc byte_bounds compare_chararrays deprecate
deprecate_with_doc fromfile fromregex genfromtxt get_array_wrap get_include get_printoptions
getbufsize geterr geterrcall geterrobj info isdtype issctype issubclass_ issubsctype
find_common_type load loadtxt lookfor maximum_sctype obj2sctype printoptions recfromcsv
recfromtxt safe_eval save savetxt savez savez_compressed sctype2char set_numeric_ops
set_printoptions set_string_function setbufsize seterr seterrcall seterrobj show_config
show_runtime source test tracemalloc_domain who msort cast nbytes
"""

# Methods and attributes of arrays: expressions of x alone.
METHODS = {
    "exact": "x.T x.all() x.any() x.argmax(0) x.argmin() x.argpartition(1) x.argsort()"
    " x.astype(int)"
    " x.astype('f8') x.clip(0.4) x.conj() x.conjugate() x.copy() x.cumprod() x.cumsum(1)"
    " x.diagonal() x.dot(x) x.dtype x.fill(1) x.flatten() x.itemsize x.mT x.max(0) x.mean() x.min()"
    " x.nbytes x.ndim x.nonzero() x.prod() x.ptp(0) x.ravel() x.real x.repeat(2) x.reshape(9)"
    " x.round(1) x.shape x.size x.squeeze() x.std() x.std(0) x.strides x.sum(axis=0)"
    " x.swapaxes(0,1) x.take([1,0]) x.trace() x.transpose(1,0) x.var(0)",
    "refused": "x.__array_interface__ x.astype('f4') x.astype('f2') x.base x.byteswap()"
    " x.choose([1]) x.compress([1]) x.ctypes x.data x.device.x x.dump('') x.dumps() x.flags x.flat"
    " x.getfield('f8') x.imag x.item(0) x.itemset(0,1) x.newbyteorder() x.partition(1)"
    " x.put([0],[1]) x.resize(3) x.searchsorted(0.5) x.setfield(1,'f8') x.setflags() x.sort()"
    " x.to_device('cpu')"
    " x.tobytes() x.tofile('') x.tolist() x.tostring() x.view(np.ndarray) x.view('i8')",
}
# Operators and Python's built-in functions.
PYTHON = {
    "exact": "x+1;x-y;2*x;x/y;x//0.3;x%0.3;x**2;2**x;x@y;-x;+x;abs(x);x==x;x!=y;x<y;x<=y;x>y;x>=y"
    ";sum(x);len(x);max(x[0]);min(*x[1]);bool(x[0,0]);0.5 in x;list(x);[*reversed(x)];x[::-1]"
    ";x[x>0.5]"
    ";x[[0,1]];x[...,None];x[0,0];[a.sum() for a in x];operator.mul(x,y);x.sum() if x[0,0]>0 else y"
    ";sorted(x[0]);pow(x,3);x[np.argmax(x[0])];np.add.outer(x[0],y[1]);np.multiply.outer(x,y[0])"
    ";np.add.reduce(x,axis=1);np.add.accumulate(x);np.multiply.reduce(x);np.maximum.reduce(x)"
    ";np.multiply.accumulate(x,axis=1);np.add.reduceat(x,[0,2]);np.logical_or.reduce(x>0.5)"
    ";np.minimum.reduce(x,axis=None);np.lib.stride_tricks.sliding_window_view(x,2,0)"
    ";np.linalg.norm(x,axis=1);np.pad(x,1,mode='reflect');np.sum(x,initial=x.size)"
    ";np.copysign(x-0.5,y-1.5);np.add.reduce(x,initial=5.);np.nan_to_num(x*[np.inf,1,-np.inf])"
    ";np.minimum(0.3,x*x);np.clip(x-0.5,-0.2,0.2);x.max(-1);np.min(x,axis=0,keepdims=True)"
    ";x-x.max(axis=1,keepdims=True);np.exp(x)/np.exp(x).sum(-1,keepdims=True);x**3+2**x+(x*x)**x"
    ";np.log(np.sum(np.exp(x-x.max())));np.float_power(x*x,1.5);np.where(x>0.5,x*x,3*x)"
    ";np.einsum('ij,kj->ik',x,np.tanh(x));np.concatenate([x.T,2*x.T]).reshape(-1).mean()"
    ";np.stack([x[0],x[1]*x[2]])[:,::-1].sum(0);x[np.argmax(x,axis=0),np.arange(x.shape[1])]"
    ";x@x.T+np.dot(x,x.T)+x.dot(x.T);np.linalg.solve(x[:,:2]@x[:,:2].T+np.eye(3),x)"
    ";np.sqrt(np.sum(np.square(x)));np.sign(x-0.5)*x+np.floor(x);np.mean((x>0.5)*x)"
    ";sum(row.sum()**2 for row in x);len(f'{x[0,0]:.3f}')*x;len(f'{x}')*x",
    "refused": "float(x[0,0]);int(x[0,0]);complex(x[0,0]);math.sin(x[0,0]);math.fsum(x[0])"
    ";math.floor(x[0,0]);divmod(x,y);round(x);hash(x);{x[0,0]:1};[0][x[0,0]];range(x[0,0]);x&x;x|1"
    ";~x;x<<1;np.array([x[0],x[1]]);np.array(x);np.array(list(x));np.float64(x[0,0]);np.matrix(x)"
    ";np.poly1d(x[0]);np.ma.array(x);np.ma.masked_array(x,x>0.5);np.recarray(3,buf=x);np.nditer(x)"
    ";np.broadcast(x,y);np.ndenumerate(x).iter;np.vectorize(abs)(x);np.r_[x,y];np.c_[x,y]"
    ";np.array(x,dtype=object);np.array([x],like=x);np.asarray(x,like=x);np.char.array(x)"
    ";memoryview(x)"
    ";bytes(x);bytearray(x);np.random.default_rng(0).normal(x)"
    ";np.random.default_rng(0).permutation(x)"
    ";np.zeros((3,3)).__iadd__(x);np.zeros((3,3)).__setitem__(0,x[0])"
    ";np.zeros(3).__setitem__(0,x[0,0])"
    ";np.zeros(3).put([0],x[0,0]);np.zeros((3,3)).fill(x[0,0])"
    ";np.zeros(9).reshape(3,3).dot(x).real.x"
    ";np.lib.stride_tricks.as_strided(x,(2,),(8,));np.polynomial.Polynomial(x[0])"
    ";np.polynomial.polynomial.polyval(x,x[0]);np.linalg.norm(x,1);np.pad(x,1,mode='maximum')"
    ";np.maximum.accumulate(x);np.exp.outer(x,y);__import__('pickle').dumps(x);x*1j"
    ";np.max(x,initial=0)"
    ";__import__('statistics').fmean(x[0])"
    ";__import__('array').array('d',x[0]);__import__('json').dumps(x[0,0])",
}
# No function of np.fft or of another library accepts a traced array.
FFT = (
    "fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft"
    " rfft2 rfftn"
)
rng = np.random.default_rng(5)
X, V = rng.uniform(0.1, 0.9, (3, 3)), rng.standard_normal((3, 3))
STEP = 1e-6


def found(name: str) -> Any:
    """Return a function of NumPy by name, None if this release does not have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return operator.attrgetter(name)(np)
        except AttributeError:
            return None


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(e, name) for e, names in table.items() for name in names.split() if found(name)]


def flat(result: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(result, (tuple, list)):
        for a in result:
            yield from flat(a)
    elif result is not None and not isinstance(result, (type, np.dtype)):
        yield np.asarray(result)


def evaluated(expression: str, x: Any, f: Any = None, **names: Any) -> Any:
    known = {"np": np, "math": math, "operator": operator, "f": f, "x": x, "y": 2 - x, **names}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return eval(expression, known)


def assert_exact(expression: str, f: Any = None) -> None:
    value, along = cupyrnn.jvp(lambda x: evaluated(expression, x, f), (X,), (V,))
    plain, plus, minus = (
        evaluated(expression, x, f) for x in (X.copy(order="K"), X + STEP * V, X - STEP * V)
    )
    parts = [list(flat(r)) for r in (value, plain, plus, minus)]
    assert len({len(part) for part in parts}) == 1
    tangents = list(flat(along))
    for a, e, p, m in zip(*parts, strict=True):
        np.testing.assert_array_equal(a, e)
        assert a.dtype == e.dtype
        if a.dtype.kind == "f":
            slope = (p - m) / (2 * STEP)
            np.testing.assert_allclose(tangents.pop(0), slope, rtol=1e-7, atol=1e-8)


def assert_refused(expression: str, f: Any = None, errors: Any = (), **names: Any) -> None:
    def function(x: Any) -> Any:
        result = evaluated(expression, x, f, **names)
        raise AssertionError(f"{expression} is not refused: {result!r}")

    with pytest.raises((TypeError, ValueError, AttributeError, *errors)):
        cupyrnn.jvp(function, (X,), (V,))


@pytest.mark.parametrize(("expression", "name"), rows(EXACT))
def test_exact(expression: str, name: str) -> None:
    assert_exact(expression, found(name))


@pytest.mark.parametrize(("expression", "name"), rows(REFUSED))
def test_refused(expression: str, name: str) -> None:
    assert_refused(expression, found(name))


@pytest.mark.parametrize("expression", METHODS["exact"].split())
def test_exact_methods(expression: str) -> None:
    plain = hasattr(np.ndarray, expression[2:].partition("(")[0])
    if plain:
        assert_exact(expression)
    else:  # an older NumPy's, or a newer one's
        cupyrnn.jvp(lambda x: evaluated(expression, x), (X,), (V,))


@pytest.mark.parametrize("expression", METHODS["refused"].split())
def test_refused_methods(expression: str) -> None:
    assert_refused(expression)


@pytest.mark.parametrize("expression", PYTHON["exact"].split(";"))
def test_exact_in_python(expression: str) -> None:
    assert_exact(expression)


@pytest.mark.parametrize("expression", PYTHON["refused"].split(";"))
def test_refused_in_python(expression: str) -> None:
    assert_refused(expression)


@pytest.mark.parametrize("name", FFT.split())
def test_refused_transforms(name: str) -> None:
    assert_refused("f(x)", getattr(np.fft, name))


@needs.without("numba")
def test_a_function_of_numba_is_refused() -> None:
    import numba

    assert_refused("f(x)", numba.njit(lambda a: a.sum()), (numba.errors.TypingError,))


def test_every_public_function_is_in_a_row() -> None:
    public = {f"linalg.{n}" for n in dir(np.linalg) if not n.startswith("_")}
    public |= {n for n in dir(np) if not n.startswith("_")}
    functions = {
        n for n in public
        if callable(found(n)) and not inspect.isclass(found(n)) and not inspect.ismodule(found(n))
    }  # fmt: skip
    listed = {name for table in (EXACT, REFUSED) for _, name in rows(table)}
    missing = {n for n in functions - listed if n.rpartition(".")[2] not in WITHOUT_NUMBERS.split()}
    assert not missing
    methods = {n for n in dir(np.ndarray) if not n.startswith("_")}
    text = " ".join(METHODS.values()) + " "
    assert not {n for n in methods if not any(f" x.{n}{c}" in f" {text}" for c in "( .")}
    assert not {n for n in np.fft.__all__ if n not in FFT.split()} - {"fftfreq", "rfftfreq", "test"}
    count = len(rows(EXACT)) + len(rows(REFUSED)) + len(text.split())
    assert count + sum(len(PYTHON[k].split(";")) for k in PYTHON) > 500
    assert all(hasattr(Traced, f"__{n}__") for n in ("array", "float", "index", "reduce_ex"))
