/* The device "cuda" for NVIDIA GPUs: cuBLAS for matrix products, cuDNN for convolutions
 * where it is built in, kernels of our own for the rest. */
#ifndef PS_CUDA_DEVICE_H
#define PS_CUDA_DEVICE_H

#include "device.h"

extern const ps_device_ops ps_cuda_device_ops;

#endif
