/* Gradients that a device encodes before they leave it: what crosses the bus is what
 * travels, and no core of the host encodes. Programs that are made afterwards for the
 * gradient arena fill the coded arena instead (coded_arena.h), and announce it
 * (grads_ready) when it is there. Small tensors, which travel as float32, are in the
 * gradient arena, too. */
#ifndef PS_DEVICE_CODES_H
#define PS_DEVICE_CODES_H

#include "coded_arena.h"

typedef struct ps_device_codes ps_device_codes;

struct ps_device_codes {
    /* The programs are gone. */
    void (*destroy)(ps_device_codes **codes);
};

#endif
