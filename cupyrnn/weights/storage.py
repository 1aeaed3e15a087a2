"""Read a net from a file of ``packed.save``: .npz without pickle."""

from __future__ import annotations

import json
import os

from ..checks import npz
from ..checks.attributes import check_choice, check_path, named
from .packed import DTYPES, FORMAT, PackedParams, check_model


@named
def load_params(path: str | os.PathLike[str]) -> PackedParams:
    """
    Read a net that ``packed.save(path)`` wrote.

    Nothing in the file is unpickled. Compressed members are refused, so a small file cannot use
    much memory.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    PackedParams
        The net, with a NumPy array in the dtype of the saved one. bfloat16 needs ml_dtypes.

    Raises
    ------
    OSError
        The file cannot be read.
    TypeError
        path is no path.
    ValueError
        The file is damaged, or is not a file of ``packed.save``.

    Examples
    --------
    >>> import tempfile
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     packed.save(f"{folder}/net.npz")
    ...     again = cupyrnn.weights.load_params(f"{folder}/net.npz")
    >>> (again.params == packed.params).all(), again[1:] == packed[1:]
    (np.True_, True)
    """
    op = "load_params"
    name = check_path(op, path)
    try:
        with npz.stored(name) as archive:
            about = json.loads(npz.read_text(archive, "about", 2**16))
            if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
                raise ValueError("it has another format")
            dtype = check_choice(op, "dtype", about.pop("dtype", None), DTYPES)
            params = npz.read_array(archive, "params")
        if dtype == "bfloat16":
            import ml_dtypes

            params = params.view(ml_dtypes.bfloat16)
        packed = PackedParams(params, **about)
        check_model(op, packed)
        if params.dtype != dtype:
            raise ValueError(f"params has dtype {params.dtype}, expected {dtype}")
    except (OSError, ModuleNotFoundError):
        raise
    except Exception as error:  # damaged zip files raise many types of errors
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        reason = reason.removeprefix(f"{op}: ")
        raise ValueError(f"{op}: {name!r} is not a file of packed.save: {reason}") from None
    return packed
