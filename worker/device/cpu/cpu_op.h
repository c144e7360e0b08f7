/* A primitive of oneDNN with its arguments bound to memory. */
#ifndef PS_CPU_OP_H
#define PS_CPU_OP_H

#include "dnnl_compat.h"

enum { PS_CPU_OP_ARGS = 12 };

typedef struct ps_cpu_op {
    dnnl_primitive_t primitive; // NULL: there is nothing to do
    int n_args;
    dnnl_exec_arg_t args[PS_CPU_OP_ARGS]; // the memory objects are owned
} ps_cpu_op;

/* Takes ownership of *pd, even on failure, and clears the pointer. */
ps_err ps_cpu_op_create(ps_cpu_op *op, const char *who, dnnl_primitive_desc_t *pd);
void ps_cpu_op_fini(ps_cpu_op *op); // safe on a zeroed one

/* The descriptor of an argument; borrowed from op. */
const ps_dnnl_md *ps_cpu_op_md(const ps_cpu_op *op, dnnl_query_t what, int index);
size_t ps_cpu_op_bytes(const ps_cpu_op *op, dnnl_query_t what); // 0 without a primitive
size_t ps_cpu_op_scratch_bytes(const ps_cpu_op *op);

/* Binds an argument (DNNL_ARG_...) to borrowed memory of the descriptor md. */
ps_err ps_cpu_op_bind(ps_cpu_op *op, const char *who, int arg, const ps_dnnl_md *md,
                      void *memory);
/* The same of the descriptor that the primitive itself has (dnnl_query_src_md, ...). */
ps_err ps_cpu_op_bind_own(ps_cpu_op *op, const char *who, int arg, dnnl_query_t what,
                          void *memory);
/* The scratchpad. */
ps_err ps_cpu_op_bind_scratch(ps_cpu_op *op, const char *who, void *memory);
/* Binds an argument to other memory of the same descriptor. */
ps_err ps_cpu_op_rebind(ps_cpu_op *op, const char *who, int arg, const void *memory);

ps_err ps_cpu_op_run(const ps_cpu_op *op, const char *who, dnnl_stream_t stream);

#endif
