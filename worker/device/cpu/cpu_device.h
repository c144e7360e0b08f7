/* The device "cpu": oneDNN, and our own kernels between its primitives. */
#ifndef PS_CPU_DEVICE_H
#define PS_CPU_DEVICE_H

#include "device.h"

extern const ps_device_ops ps_cpu_device_ops;

#endif
