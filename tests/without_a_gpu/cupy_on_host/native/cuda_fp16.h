// Stands for CUDA's header of this name, which cublas_api.h includes and does not need in C.
