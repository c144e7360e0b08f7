/* Float32 copies of values of 16 bits, for steps that have no code for them: they stand
 * in for the values and their gradients while the step computes. */
#ifndef PS_CPU_LEND_H
#define PS_CPU_LEND_H

#include "cpu_plan.h"

/* Take memory for the copies of a pass, and give back what no later pass reads. Called
 * before and after the step's other memory of that pass is planned. */
ps_err ps_cpu_lend_plan_forward(ps_cpu_run *run, ps_cpu_step *step);
void ps_cpu_lend_give_forward(ps_cpu_run *run, ps_cpu_step *step, bool training);
ps_err ps_cpu_lend_plan_backward(ps_cpu_run *run, ps_cpu_step *step);
void ps_cpu_lend_give_backward(ps_cpu_run *run, ps_cpu_step *step);

/* Finds where the copies lie, once the memory is laid out, and puts all of them in the
 * values' place; ps_cpu_lend_take_back reverses this. Between the two, primitives are
 * bound to them. */
void ps_cpu_lend_bind(ps_cpu_run *run, ps_cpu_step *step);
void ps_cpu_lend_take_back(ps_cpu_run *run, ps_cpu_step *step);

/* Before a pass of the step: fills the copies that it reads and puts them in the values'
 * place. After it: rounds the copies that it has written, and takes them back. */
void ps_cpu_lend_forward(ps_cpu_run *run, ps_cpu_step *step);
void ps_cpu_lend_forward_end(ps_cpu_run *run, ps_cpu_step *step);
void ps_cpu_lend_backward(ps_cpu_run *run, ps_cpu_step *step);
void ps_cpu_lend_backward_end(ps_cpu_run *run, ps_cpu_step *step);

#endif
