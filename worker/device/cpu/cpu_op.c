#include "cpu_op.h"

ps_err ps_cpu_op_create(ps_cpu_op *op, const char *who, dnnl_primitive_desc_t *pd)
{
    *op = (ps_cpu_op){0};
    dnnl_status_t s = dnnl_primitive_create(&op->primitive, *pd);
    ps_dnnl_pd_destroy(pd);
    return ps_dnnl_check(s, who, "primitive");
}

void ps_cpu_op_fini(ps_cpu_op *op)
{
    for (int i = 0; i < op->n_args; i++)
        dnnl_memory_destroy(op->args[i].memory);
    if (op->primitive) dnnl_primitive_destroy(op->primitive);
    *op = (ps_cpu_op){0};
}

const ps_dnnl_md *ps_cpu_op_md(const ps_cpu_op *op, dnnl_query_t what, int index)
{
    const_dnnl_primitive_desc_t pd = NULL;
    if (!op->primitive ||
        dnnl_primitive_get_primitive_desc(op->primitive, &pd) != dnnl_success)
        return NULL;
    return ps_dnnl_pd_md(pd, what, index);
}

size_t ps_cpu_op_bytes(const ps_cpu_op *op, dnnl_query_t what)
{
    const ps_dnnl_md *md = ps_cpu_op_md(op, what, 0);
    return md ? dnnl_memory_desc_get_size(md) : 0;
}

size_t ps_cpu_op_scratch_bytes(const ps_cpu_op *op)
{
    return ps_cpu_op_bytes(op, dnnl_query_scratchpad_md);
}

ps_err ps_cpu_op_bind(ps_cpu_op *op, const char *who, int arg, const ps_dnnl_md *md,
                      void *memory)
{
    if (!op->primitive || !md) return PS_OK;
    const_dnnl_primitive_desc_t pd = NULL;
    dnnl_engine_t engine = NULL;
    dnnl_status_t s = dnnl_primitive_get_primitive_desc(op->primitive, &pd);
    if (s == dnnl_success)
        s = dnnl_primitive_desc_query(pd, dnnl_query_engine, 0, &engine);
    if (op->n_args == PS_CPU_OP_ARGS) s = dnnl_out_of_memory;
    dnnl_exec_arg_t *a = &op->args[op->n_args];
    if (s == dnnl_success) s = dnnl_memory_create(&a->memory, md, engine, memory);
    PS_TRY(ps_dnnl_check(s, who, "memory"));
    a->arg = arg;
    op->n_args++;
    return PS_OK;
}

ps_err ps_cpu_op_bind_own(ps_cpu_op *op, const char *who, int arg, dnnl_query_t what,
                          void *memory)
{
    return ps_cpu_op_bind(op, who, arg, ps_cpu_op_md(op, what, 0), memory);
}

ps_err ps_cpu_op_bind_scratch(ps_cpu_op *op, const char *who, void *memory)
{
    if (ps_cpu_op_scratch_bytes(op) == 0) return PS_OK;
    return ps_cpu_op_bind_own(op, who, DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md,
                              memory);
}

ps_err ps_cpu_op_rebind(ps_cpu_op *op, const char *who, int arg, const void *memory)
{
    for (int i = 0; i < op->n_args; i++) {
        if (op->args[i].arg != arg) continue;
        void *bound = NULL;
        dnnl_memory_t m = op->args[i].memory;
        PS_TRY(ps_dnnl_check(dnnl_memory_get_data_handle(m, &bound), who, "memory"));
        if (bound == memory) return PS_OK; // else the library zeroes the padding again
        void *writable = (void *)(uintptr_t)memory;
        return ps_dnnl_check(dnnl_memory_set_data_handle(m, writable), who, "memory");
    }
    return PS_OK;
}

ps_err ps_cpu_op_run(const ps_cpu_op *op, const char *who, dnnl_stream_t stream)
{
    if (!op->primitive) return PS_OK;
    return ps_dnnl_check(
        dnnl_primitive_execute(op->primitive, stream, op->n_args, op->args), who,
        "execution");
}
