"""Write the files of TensorFlow in tf_files: python tests/data/make_tf_files.py

TensorFlow 2.21.0 wrote those that are there. tests/weights/test_tf_files.py reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

FOLDER = Path(__file__).parent / "tf_files"
v1 = tf.compat.v1


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return what the test expects: 0, 1, 2, ... in halves."""
    return (np.arange(np.prod(shape)) / 2).reshape(shape).astype(dtype)


def main() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        old = []
        for dtype in (
            "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64",
            "uint8", "uint16", "complex64", "complex128", "bool",
        ):  # fmt: skip
            kind = tf.as_dtype(dtype)
            values = tf.constant(numbers((2, 3), kind.as_numpy_dtype), kind)
            old.append(v1.get_variable(f"kinds/{dtype}", initializer=values))
        v1.get_variable("text", initializer=tf.constant("not numbers"))
        v1.get_variable("global_step", initializer=np.int64(700))
        v1.get_variable("empty", initializer=np.zeros((0, 4), "f4"))
        for axis, shape in enumerate([(7, 2), (2, 200)]):
            whole = numbers(shape, "f4")
            v1.get_variable(
                f"parts{axis}",
                shape,
                initializer=lambda shape, partition_info=None, whole=whole, **_: tf.constant(
                    whole[tuple(slice(o, o + n) for o, n in zip(
                        partition_info.var_offset, shape, strict=True))]
                ),
                partitioner=v1.fixed_size_partitioner(3, axis),
            )  # fmt: skip
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(save_relative_paths=True)
        saver.save(session, str(FOLDER / "model.ckpt"), write_meta_graph=False)
        old_saver = v1.train.Saver(old[:2], write_version=v1.train.SaverDef.V1)
        old_saver.save(
            session, str(FOLDER / "version1.ckpt"), write_meta_graph=False, write_state=False
        )
    with tf.Graph().as_default() as graph:
        for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
            values = numbers((2, 3), tf.as_dtype(dtype).as_numpy_dtype)
            tf.constant(values, name=f"whole/{dtype}")
            tf.constant(values[1, 2], shape=(2, 3), name=f"filled/{dtype}")
            tf.constant(values[1, 2], name=f"scalar/{dtype}")
        tf.constant("not numbers", name="text")
        definition = graph.as_graph_def()
        # An older TensorFlow writes values one by one. The last value fills the rest.
        tensor = definition.node.add(name="short", op="Const").attr["value"].tensor
        tensor.dtype = 3
        tensor.int_val.extend([-1, 5])
        tensor.tensor_shape.dim.add(size=4)
        (FOLDER / "graph.pb").write_bytes(definition.SerializeToString())


main()
