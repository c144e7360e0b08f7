/* The device "cpu": oneDNN's primitives, and kernels of our own for the rest. */
#ifndef PS_CPU_DEVICE_H
#define PS_CPU_DEVICE_H

#include "device.h"

extern const ps_device_ops ps_cpu_device_ops;

#endif
