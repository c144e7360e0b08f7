/* A model planned for one batch size: the layouts of its values, and when each step needs
 * which memory. */
#ifndef PS_CPU_PLAN_H
#define PS_CPU_PLAN_H

#include "cpu_batchnorm.h"
#include "cpu_conv.h"
#include "cpu_embedding.h"
#include "cpu_groupnorm.h"
#include "cpu_interpolate.h"
#include "cpu_linear_rows.h"
#include "cpu_pool_rows.h"
#include "device.h"
#include "model_graph.h"

typedef struct ps_cpu_value {
    ps_cpu_shape shape;
    int root;            // the value whose memory it shares; itself, if it has its own
    int slot, grad_slot; // slot: of a root only; grad_slot: of any value
    void *at, *grad;     // at of value 0: the pass's input
    int last_reader;     // node; for a root, of all its views too
    bool narrow;         // both have 16 bits, else float32 (cpu_narrow.h)
} ps_cpu_value;

enum { PS_CPU_INPUTS = 2 }; // of a step, at most

typedef struct ps_cpu_loan {
    int slot;
    float *copy; // NULL: none
    void *own;   // the value's memory while the copy stands in for it
} ps_cpu_loan;

typedef struct ps_cpu_step {
    const ps_model_node *node;
    ps_cpu_conv conv;
    ps_cpu_batchnorm batchnorm;
    ps_cpu_batchnorm_arrays batchnorm_arrays;
    ps_cpu_embedding embedding; // EMBEDDING
    ps_cpu_groupnorm groupnorm; // GROUP_NORM, LAYER_NORM
    ps_cpu_pool pool;
    ps_cpu_interpolate interpolate; // UPSAMPLE, adaptive pools
    ps_cpu_dropout dropout;
    ps_cpu_linear linear;
    bool in_place;
    bool before_library_relu; // this step or a later one uses oneDNN's relu
    bool view;                // the output shares the input's memory: nothing to do
    bool rows;                // MAX_POOL2D: the output is row-major
    bool drops;  // DROPOUT, or a MAX_POOL2D that also does the dropout after it
    bool add[2]; // add to the input's gradient: another reader has written it
    /* slot_x: the input in the layout, or as the factors, that the products read;
     * slot_dx: dx of CONV2D, BATCH_NORM2D and LINEAR, to be added. */
    int slot_x, slot_dx;
    int slot_mask;             // DROPOUT
    int slot_turned;           // LINEAR
    int slot_argmax;           // MAX_POOL2D, ADAPTIVE_MAX_POOL2D
    ps_cpu_factors factors;    // of the products of a CONV2D or LINEAR
    int slot_turned_x;         // the input in another layout, before it is narrowed
    int slot_dy, slot_weights; // narrow: dy; the weights of a LINEAR
    void *x, *dy;              // NULL: the values' own memory
    void *dx;                  // as x
    float *weights;
    uint8_t *mask;
    uint32_t *argmax;
    /* Values of 16 bits that are float32 to this step: while it computes, their memory is
     * that of float32 copies (cpu_lend.h). grad: of the gradients. */
    bool lends[PS_CPU_INPUTS], lends_out;
    ps_cpu_loan loan[PS_CPU_INPUTS], loan_out, loan_grad[PS_CPU_INPUTS], loan_out_grad;
} ps_cpu_step;

/* oneDNN, as a device has opened it. */
typedef struct ps_cpu_library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    ps_winograd winograd; // train.winograd
    ps_cpu_factors factors;
    ps_spare_memory *spare; // the device's: memory of a run that was freed
} ps_cpu_library;

typedef struct ps_cpu_run {
    int n; // samples
    const ps_program_options *options;
    const ps_model_graph *graph;
    ps_cpu_value *values; // graph->n_edges
    ps_cpu_step *steps;   // graph->n_nodes
    ps_memory_plan memory;
    const ps_cpu_library *library; // borrowed
    const ps_batch *batch;         // of the pass that runs
} ps_cpu_run;

/* Where a tensor of the model lies in the parameter arena; NULL for PS_NONE. */
float *ps_cpu_parameter(const ps_cpu_run *run, int tensor);

void ps_cpu_step_fini(ps_cpu_step *step); // safe on a zeroed one

/* Makes the primitives and arrays the memory of run, whose arrays exist. */
ps_err ps_cpu_plan(ps_cpu_run *run, const ps_cpu_run *other);

#endif
