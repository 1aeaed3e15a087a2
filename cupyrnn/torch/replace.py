"""`from_torch` replaces modules of torch.nn by modules of this package."""

from __future__ import annotations

import copy
import inspect
from typing import Any, TypeVar

import torch

from ..checks.attributes import named, type_shown
from .cells import GRUCell, LSTMCell, RNNCell
from .recurrent import GRU, LSTM, RNN

_KINDS: dict[Any, Any] = {
    getattr(torch.nn, own.__name__): own for own in (LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell)
}
_Module = TypeVar("_Module", bound=torch.nn.Module)


@named
def from_torch(module: _Module) -> _Module:
    """
    Copy a module of torch.nn, or a model, with this package's recurrent modules and cells in it.

    Parameters
    ----------
    module : torch.nn.Module
        A `torch.nn.LSTM`, `GRU`, `RNN`, `LSTMCell`, `GRUCell` or `RNNCell`, or a model that
        contains some. It is not changed. Of weights made by a parametrization, a weight_norm or a
        pruning mask, the current values are copied. Hooks of the replaced modules are left out.

    Returns
    -------
    torch.nn.Module
        For a recurrent module this package's module of the same name; for a model a copy by
        `copy.deepcopy` with such modules in it. Parameters have the same values, device, dtype and
        requires_grad, and modules the same training mode. What the model shares, the copy shares:
        modules and parameters.

    Raises
    ------
    TypeError
        module is no module, contains no module to replace, or contains a subclass of one that
        overrides forward: replace that where it is defined.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> cupyrnn.torch.from_torch(torch.nn.GRU(2, 3, num_layers=2, bidirectional=True))
    GRU(2, 3, num_layers=2, bidirectional=True)
    >>> model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(2, 3), "out": torch.nn.Linear(3, 1)})
    >>> type(cupyrnn.torch.from_torch(model)["rnn"]).__module__
    'cupyrnn.torch.recurrent'
    """
    copies: dict[int, Any] = {}  # of modules and parameters, for deepcopy
    modules = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    for path, theirs in modules:
        kind = next((own for kind, own in _KINDS.items() if isinstance(theirs, kind)), None)
        if kind is None:
            continue
        if type(theirs).forward not in (kind.forward, getattr(torch.nn, kind.__name__).forward):
            where = f"module.{path}" if path else "module"
            raise TypeError(
                f"from_torch: {where} is {type_shown(theirs)}, whose forward is its own, expected"
                f" a torch.nn.{kind.__name__}; derive it from cupyrnn.torch.{kind.__name__}"
            )
        copies[id(theirs)] = _copied(kind, theirs, copies)
    if not copies:
        *names, last = (own.__name__ for own in _KINDS.values())
        raise TypeError(
            f"from_torch: module is {type_shown(module)}, expected a torch.nn."
            f"{', '.join(names)} or {last}, or a model that contains one"
        )
    return copy.deepcopy(module, copies)


def _copied(kind: Any, theirs: Any, copies: dict[int, Any]) -> torch.nn.Module:
    """Return a module of this package with copies of the parameters, each copied once."""
    names = [n for n in inspect.signature(kind).parameters if n not in ("device", "dtype")]
    arguments = {n: getattr(theirs, n) for n in names if hasattr(theirs, n)}  # not always `save`
    first = next(theirs.parameters())
    place = {"device": first.device, "dtype": first.dtype}
    net = torch.nn.utils.skip_init(kind, **arguments, **place)
    with torch.no_grad():
        for name, parameter in [*net.named_parameters()]:
            weight = getattr(theirs, name)
            if id(weight) in copies:
                setattr(net, name, copies[id(weight)])
                continue
            parameter.copy_(weight)
            parameter.requires_grad_(weight.requires_grad)
            if isinstance(weight, torch.nn.Parameter):
                copies[id(weight)] = parameter
    return net.train(theirs.training)
