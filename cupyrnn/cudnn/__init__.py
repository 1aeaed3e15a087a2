"""CudnnRNN by cuDNN itself: `engine` for both of its versions, `library` as the wall around 9."""
