# The names of the package, each once. ``_lazy`` reads this file; see there.
from .block import params_from_block_lstm as params_from_block_lstm
from .block import params_to_block_lstm as params_to_block_lstm
from .gates import Gate as Gate
from .gates import block_lstm_from_gates as block_lstm_from_gates
from .gates import block_lstm_to_gates as block_lstm_to_gates
from .gates import params_from_gates as params_from_gates
from .gates import params_to_gates as params_to_gates
from .keras import params_from_keras as params_from_keras
from .keras import params_to_keras as params_to_keras
from .nets import join_params as join_params
from .nets import reverse_update_gate as reverse_update_gate
from .nets import split_params as split_params
from .onnx import OnnxParams as OnnxParams
from .onnx import block_lstm_from_onnx as block_lstm_from_onnx
from .onnx import block_lstm_to_onnx as block_lstm_to_onnx
from .onnx import params_from_onnx as params_from_onnx
from .onnx import params_to_onnx as params_to_onnx
from .quantized import dequantize as dequantize
from .quantized import params_from_quantized_onnx as params_from_quantized_onnx
from .storage import load_params as load_params
from .tf1 import block_lstm_from_tf1 as block_lstm_from_tf1
from .tf1 import block_lstm_to_tf1 as block_lstm_to_tf1
from .tf1 import params_from_tf1 as params_from_tf1
from .tf1 import params_to_tf1 as params_to_tf1
from .tf_files import read_tf_checkpoint as read_tf_checkpoint
from .tf_files import read_tf_frozen_graph as read_tf_frozen_graph
from .tf_files import write_tf_checkpoint as write_tf_checkpoint
from .torch import params_from_torch as params_from_torch
from .torch import params_to_torch as params_to_torch

__all__: list[str]
