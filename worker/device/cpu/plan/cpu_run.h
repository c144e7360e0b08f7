/* A program for one batch size: the two passes. */
#ifndef PS_CPU_RUN_H
#define PS_CPU_RUN_H

#include "cpu_plan.h"

/* Borrows all arguments. other: a run whose memory this one may share, or NULL; it must
 * outlive this run. run is safe for fini after a failure. */
ps_err ps_cpu_run_init(ps_cpu_run *run, const ps_program_options *options,
                       const ps_model_graph *graph, int n, const ps_cpu_library *library,
                       const ps_cpu_run *other);
void ps_cpu_run_fini(ps_cpu_run *run);

ps_err ps_cpu_run_forward(ps_cpu_run *run, const ps_batch *batch, const ps_pass *pass,
                          ps_pass_result *result);
ps_err ps_cpu_run_backward(ps_cpu_run *run, const ps_batch *batch, const ps_pass *pass);

#endif
