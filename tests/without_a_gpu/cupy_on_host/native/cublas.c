// The products: a plain loop, with everything checked that cuBLAS takes on trust.
#include <stdlib.h>
#include <string.h>

#include "host.h"

#define CUBLASAPI
#include <cublas_api.h>

struct cublasContext {
  cudaStream_t stream;
  cublasMath_t math;
  cublasPointerMode_t pointers;
  int device;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = calloc(1, sizeof **handle);
  (*handle)->device = host_device();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  handle->pointers = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = handle->pointers;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- numbers

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static size_t size_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_64F: case CUDA_C_32F: return 8;
    case CUDA_C_64F: return 16;
    case CUDA_R_16F: case CUDA_R_16BF: return 2;
    default: return 0;
  }
}

// A complex number is two of these.
static int parts_of(cudaDataType type) { return type == CUDA_C_32F || type == CUDA_C_64F ? 2 : 1; }

static cudaDataType part_of(cudaDataType type) {
  return type == CUDA_C_32F ? CUDA_R_32F : type == CUDA_C_64F ? CUDA_R_64F : type;
}

static double load(const void* p, size_t i, cudaDataType type) {
  switch (type) {
    case CUDA_R_32F: return ((const float*)p)[i];
    case CUDA_R_64F: return ((const double*)p)[i];
    case CUDA_R_16F: return ((const _Float16*)p)[i];
    default: return from_bits((uint32_t)((const uint16_t*)p)[i] << 16);
  }
}

static uint16_t bfloat16(float value) {
  const uint32_t bits = to_bits(value);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static void store(void* p, size_t i, cudaDataType type, double value) {
  switch (type) {
    case CUDA_R_32F: ((float*)p)[i] = value; break;
    case CUDA_R_64F: ((double*)p)[i] = value; break;
    case CUDA_R_16F: ((_Float16*)p)[i] = (float)value; break;
    default: ((uint16_t*)p)[i] = bfloat16(value);
  }
}

// TF32 keeps 10 of the 23 bits behind the point.
static float tf32(float value) {
  return (to_bits(value) & 0x7f800000) == 0x7f800000
             ? value : from_bits((to_bits(value) + 0x1000) & ~0x1fffu);
}

// A part of op(matrix) with rows x columns, each column in one piece; null where there is none.
static double* gather(const void* p, cudaDataType type, int part, bool transposed, int ld, int rows,
                      int columns, bool round_to_tf32) {
  const int parts = parts_of(type);
  if (part >= parts) return NULL;
  double* to = malloc((size_t)rows * columns * sizeof *to);
  for (size_t j = 0; j < (size_t)columns; ++j)
    for (size_t i = 0; i < (size_t)rows; ++i) {
      const size_t at = transposed ? i * ld + j : j * ld + i;
      const double value = load(p, at * parts + part, part_of(type));
      to[j * rows + i] = round_to_tf32 ? tf32(value) : value;
    }
  return to;
}

// Sums in float64, rounded once: as near as any order of additions in float32 comes. Of complex
// numbers the real part is a0*b0 - a1*b1, the imaginary one a0*b1 + a1*b0.
static void multiply(int m, int n, int k, double alpha, double* a[2], double* b[2], double beta,
                     void* C, cudaDataType type, int ldc) {
  double* sums = malloc(m * sizeof *sums);
  const int parts = parts_of(type);
  const cudaDataType real = part_of(type);
  for (int part = 0; part < parts; ++part)
    for (int j = 0; j < n; ++j) {
      memset(sums, 0, m * sizeof *sums);
      for (int term = 0; term < parts; ++term)
        for (int l = 0; l < k; ++l) {
          const double factor = b[term ^ part][(size_t)j * k + l] * (term && !part ? -1 : 1);
          const double* column = a[term] + (size_t)l * m;
          for (int i = 0; i < m; ++i) sums[i] += column[i] * factor;
        }
      for (int i = 0; i < m; ++i) {
        const size_t at = ((size_t)j * ldc + i) * parts + part;
        // With beta = 0 cuBLAS does not read C, which may hold anything.
        store(C, at, real, alpha * sums[i] + (beta == 0 ? 0 : beta * load(C, at, real)));
      }
    }
  free(sums);
}

// ---- checks

static bool matrix(const char* name, const void* p, cudaDataType type, int rows, int columns,
                   int ld, int device) {
  const size_t size = ((size_t)(columns - 1) * ld + rows) * size_of(type);
  if (ld < rows)
    return host_fail(0, "cublasGemmEx: leading dimension %d of %s, which has %d rows", ld, name, rows);
  if ((uintptr_t)p % size_of(type))
    return host_fail(0, "cublasGemmEx: %s at %p is not aligned to %zu", name, p, size_of(type));
  if (!host_holds(p, size, device))
    return host_fail(0, "cublasGemmEx: %s, %zu bytes at %p, is not inside one allocation of device %d",
                     name, size, p, device);
  return true;
}

static bool types_fit(cudaDataType from, cudaDataType to, cublasComputeType_t compute) {
  const bool half = from == CUDA_R_16F || from == CUDA_R_16BF;
  const bool single = from == CUDA_R_32F || from == CUDA_C_32F;
  switch (compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC: return (from == CUDA_R_64F || from == CUDA_C_64F) && to == from;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC: return (half && to == CUDA_R_32F) || ((half || single) && to == from);
    case CUBLAS_COMPUTE_32F_FAST_TF32: return single && to == from;
    default: return false;
  }
}

// Eight bits each: what went in, what comes out, how it is computed, the mode of the handle.
static void note(const char* name, cublasHandle_t handle, cudaDataType from, cudaDataType to,
                 cublasComputeType_t compute) {
  host_note(PRODUCT, name, handle->stream,
            from | to << 8 | compute << 16 | (size_t)handle->math << 24);
}

static cublasStatus_t product(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const void* alpha,
                              const void* A, cudaDataType Atype, int lda, const void* B,
                              cudaDataType Btype, int ldb, const void* beta, void* C,
                              cudaDataType Ctype, int ldc, cublasComputeType_t compute) {
  if (m < 0 || n < 0 || k < 0) return host_fail(CUBLAS_STATUS_INVALID_VALUE, "cublasGemmEx: m, n, k");
  if (!m || !n || !k) return CUBLAS_STATUS_SUCCESS;
  if (Atype != Btype || !types_fit(Atype, Ctype, compute))
    return host_fail(CUBLAS_STATUS_NOT_SUPPORTED,
                     "cublasGemmEx: types %d, %d, %d do not go with compute type %d", Atype, Btype,
                     Ctype, compute);
  if (handle->device != host_device())
    return host_fail(CUBLAS_STATUS_INVALID_VALUE, "cublasGemmEx: a handle of device %d on device %d",
                     handle->device, host_device());
  if (!host_knows_stream(handle->stream))
    return host_fail(CUBLAS_STATUS_INVALID_VALUE, "cublasGemmEx: no such stream");
  if (handle->pointers != CUBLAS_POINTER_MODE_HOST || host_is_device(alpha) || host_is_device(beta))
    return host_fail(CUBLAS_STATUS_NOT_SUPPORTED, "cublasGemmEx: scalars of the device");
  if (transa == CUBLAS_OP_C || transb == CUBLAS_OP_C)
    return host_fail(CUBLAS_STATUS_NOT_SUPPORTED, "cublasGemmEx: a conjugate");
  const bool ta = transa != CUBLAS_OP_N, tb = transb != CUBLAS_OP_N;
  if (!matrix("A", A, Atype, ta ? k : m, ta ? m : k, lda, handle->device) ||
      !matrix("B", B, Btype, tb ? n : k, tb ? k : n, ldb, handle->device) ||
      !matrix("C", C, Ctype, m, n, ldc, handle->device))
    return CUBLAS_STATUS_INVALID_VALUE;
  int status;
  if (host_is_captured("cublasGemmEx", handle->stream, &status) || status || !host_executes_products)
    return status ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
  const bool narrow = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const bool wide = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
  const cudaDataType scalar = wide ? CUDA_R_64F : CUDA_R_32F;
  // Of complex matrices the scalars are complex too.
  if (parts_of(Atype) == 2 && (load(alpha, 1, scalar) != 0 || load(beta, 1, scalar) != 0))
    return host_fail(CUBLAS_STATUS_NOT_SUPPORTED, "cublasGemmEx: scalars that are not real");
  double *a[2], *b[2];
  for (int part = 0; part < 2; ++part) {
    a[part] = gather(A, Atype, part, ta, lda, m, k, narrow);
    b[part] = gather(B, Btype, part, tb, ldb, k, n, narrow);
  }
  multiply(m, n, k, load(alpha, 0, scalar), a, b, load(beta, 0, scalar), C, Ctype, ldc);
  for (int part = 0; part < 2; ++part) {
    free(a[part]);
    free(b[part]);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void* alpha,
                            const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algo) {
  note("cublasGemmEx", handle, Atype, Ctype, compute);
  return product(handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C,
                 Ctype, ldc, compute);
}

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
    const void* alpha, const void* A, cudaDataType Atype, int lda, long long strideA, const void* B,
    cudaDataType Btype, int ldb, long long strideB, const void* beta, void* C, cudaDataType Ctype,
    int ldc, long long strideC, int count, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  note("cublasGemmStridedBatchedEx", handle, Atype, Ctype, compute);
  for (int i = 0; i < count; ++i) {
    const cublasStatus_t status = product(
        handle, transa, transb, m, n, k, alpha,
        (const char*)A + i * strideA * (long long)size_of(Atype), Atype, lda,
        (const char*)B + i * strideB * (long long)size_of(Btype), Btype, ldb, beta,
        (char*)C + i * strideC * (long long)size_of(Ctype), Ctype, ldc, compute);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CUBLAS_STATUS_SUCCESS;
}
