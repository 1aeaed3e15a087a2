# The names of the package, each once. ``_lazy`` reads this file; see there.
from . import cells as cells
from . import device as device
from . import jax as jax
from . import parallel as parallel
from . import raw_ops as raw_ops
from . import reference as reference
from . import torch as torch
from . import typing as typing
from . import weights as weights
from .derivatives.jvp import jvp as jvp
from .onnx_node import run_onnx_node as run_onnx_node
from .ops.cudnn_rnn import cudnn_rnn as cudnn_rnn
from .ops.cudnn_rnn import cudnn_rnn_backprop as cudnn_rnn_backprop
from .ops.cudnn_rnn import cudnn_rnn_engine as cudnn_rnn_engine
from .ops.gru import block_gru as block_gru
from .ops.gru import block_gru_grad as block_gru_grad
from .ops.gru import gru_block_cell as gru_block_cell
from .ops.gru import gru_block_cell_backward as gru_block_cell_backward
from .ops.gru import gru_block_cell_grad as gru_block_cell_grad
from .ops.lstm import block_lstm as block_lstm
from .ops.lstm import block_lstm_grad as block_lstm_grad
from .ops.lstm import lstm_block_cell as lstm_block_cell
from .ops.lstm import lstm_block_cell_backward as lstm_block_cell_backward
from .ops.lstm import lstm_block_cell_grad as lstm_block_cell_grad
from .ops.stacked_rnn import stacked_rnn as stacked_rnn
from .ops.stacked_rnn import stacked_rnn_backprop as stacked_rnn_backprop
from .pullback import Pullback as Pullback
from .pullback import vjp as vjp
from .stream import PreparedStep as PreparedStep
from .stream import prepare_step as prepare_step
from .weights.forms import BlockGRUParams as BlockGRUParams
from .weights.forms import BlockLSTMParams as BlockLSTMParams
from .weights.forms import LSTMState as LSTMState
from .weights.forms import PeepholeLSTMParams as PeepholeLSTMParams
from .weights.init import init_block_gru as init_block_gru
from .weights.init import init_block_lstm as init_block_lstm
from .weights.init import init_params as init_params
from .weights.packed import PackedParams as PackedParams
from .weights.params import cudnn_rnn_canonical_to_params as cudnn_rnn_canonical_to_params
from .weights.params import cudnn_rnn_params_layout as cudnn_rnn_params_layout
from .weights.params import cudnn_rnn_params_size as cudnn_rnn_params_size
from .weights.params import cudnn_rnn_params_to_canonical as cudnn_rnn_params_to_canonical

__all__: list[str]
__version__: str
