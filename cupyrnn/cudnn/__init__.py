"""CudnnRNN computed by cuDNN 9: `engine` works on arrays, `library` calls cuDNN."""
