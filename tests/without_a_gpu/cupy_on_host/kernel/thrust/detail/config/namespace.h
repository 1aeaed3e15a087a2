// All that CuPy's complex numbers take of Thrust, whose own header asks for a CUDA compiler.
#pragma once

#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
