/* Libraries that are loaded when they are asked for, so that one program runs where they
 * are and where they are not. */
#ifndef PS_DYNLIB_H
#define PS_DYNLIB_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

typedef struct ps_dynlib {
    const char *user;    // who asks, for messages: "nccl", "train.cudnn"
    const char *file;    // "libnccl.so.2": the system's loader looks for it
    const char *version; // what has all symbols, and is to be installed
} ps_dynlib;

typedef struct ps_dynlib_symbol {
    const char *name;
    void **to;     // where the function's address is written
    bool optional; // NULL is written where the library has none
} ps_dynlib_symbol;

/* Loads the library and finds n symbols. UNSUPPORTED names the library and what is
 * missing: itself, or a symbol, and the version that has it. It stays loaded to the end:
 * threads and code of it may outlive whatever is destroyed. */
ps_err ps_dynlib_open(const ps_dynlib *lib, const ps_dynlib_symbol *symbols, size_t n);

#endif
