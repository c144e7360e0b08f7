/* Libraries that are loaded on demand, so that a program also runs on machines without
 * them. */
#ifndef PS_DYNLIB_H
#define PS_DYNLIB_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

typedef struct ps_dynlib {
    const char *user;    // who asks, for messages: "nccl", "train.cudnn"
    const char *file;    // "libnccl.so.2": the system's loader looks for it
    const char *version; // the version to install: it has all symbols
} ps_dynlib;

typedef struct ps_dynlib_symbol {
    const char *name;
    void **to;     // where the function's address is written
    bool optional; // NULL is written when the library lacks it
} ps_dynlib_symbol;

/* Loads the library and finds n symbols. UNSUPPORTED says that the library is missing, or
 * which symbol is missing and which version has it. The library is never unloaded: its
 * threads may outlive everything that uses it. */
ps_err ps_dynlib_open(const ps_dynlib *lib, const ps_dynlib_symbol *symbols, size_t n);

#endif
