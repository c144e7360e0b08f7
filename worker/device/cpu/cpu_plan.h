/* A model planned for one batch size: which layouts its values have, and which memory
 * every step needs when. */
#ifndef PS_CPU_PLAN_H
#define PS_CPU_PLAN_H

#include "cpu_conv.h"
#include "cpu_linear.h"
#include "cpu_norm.h"
#include "cpu_pool_rows.h"
#include "device.h"
#include "model_graph.h"

typedef struct ps_cpu_value {
    ps_cpu_shape shape;
    int root;            // the value in whose memory it lies; itself, if in its own
    int slot, grad_slot; // of a root; of any
    float *at, *grad;    // at of value 0: the pass's input
    int last_reader;     // node; of a root with its views
} ps_cpu_value;

typedef struct ps_cpu_step {
    const ps_model_node *node;
    ps_cpu_conv conv;
    ps_cpu_norm norm;
    ps_cpu_norm_places norm_places;
    ps_cpu_pool pool;
    ps_cpu_dropout dropout;
    ps_cpu_linear linear;
    bool in_place;
    bool before_library_relu; // one of oneDNN's is done in this step or a later one
    bool view;                // the output is the input's memory: nothing to do
    bool rows;                // MAX_POOL2D: the output is row-major
    bool drops;          // it is DROPOUT, or a MAX_POOL2D that does the one after it too
    bool add[2];         // the gradient of the input is added to what others gave
    int slot_x, slot_dx; // CONV2D: input in its layout; CONV2D, BATCH_NORM2D: dx to add
    int slot_mask;       // DROPOUT
    int slot_turned;     // LINEAR
    int slot_argmax;     // MAX_POOL2D
    float *x, *dx;       // NULL: the values' own memory
    uint8_t *mask;
    uint32_t *argmax;
} ps_cpu_step;

/* oneDNN, as a device has opened it. */
typedef struct ps_cpu_library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    ps_winograd winograd; // train.winograd
} ps_cpu_library;

typedef struct ps_cpu_run {
    int n; // samples
    const ps_program_options *options;
    const ps_model_graph *graph;
    ps_cpu_value *values; // graph->n_edges
    ps_cpu_step *steps;   // graph->n_nodes
    ps_memory_plan memory;
    const ps_cpu_library *library; // borrowed
} ps_cpu_run;

/* Where a tensor of the model lies in the parameter arena; NULL for PS_NONE. */
float *ps_cpu_parameter(const ps_cpu_run *run, int tensor);

/* Makes the primitives and places the memory of run, whose arrays exist. */
ps_err ps_cpu_plan(ps_cpu_run *run, const ps_cpu_run *other);

#endif
