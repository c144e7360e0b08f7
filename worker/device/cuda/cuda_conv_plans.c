#include "cuda_conv_plans.h"

#include <stdlib.h>

#include "mem.h"

typedef struct conv_entry {
    const ps_layer *layer;
    ps_conv_kind kind;
    int64_t n;
    bool add;
    ps_conv_plan *plan; // NULL: none fits
} conv_entry;

struct ps_cuda_conv_plans {
    ps_conv_library *library;
    ps_format format;
    bool channels_last;
    size_t most_bytes;
    conv_entry *entries;
    int n_entries;
    uint32_t room;
};

ps_err ps_cuda_conv_plans_create(ps_conv_library *library, ps_format format,
                                 bool channels_last, size_t most_bytes,
                                 ps_cuda_conv_plans **out)
{
    *out = NULL;
    if (!library) return PS_OK;
    PS_TRY(PS_NEW(out, 1, "convolutions"));
    (*out)->library = library;
    (*out)->format = format;
    (*out)->channels_last = channels_last;
    (*out)->most_bytes = most_bytes;
    return PS_OK;
}

void ps_cuda_conv_plans_destroy(ps_cuda_conv_plans **plans)
{
    ps_cuda_conv_plans *p = *plans;
    if (!p) return;
    for (int i = 0; i < p->n_entries; i++)
        ps_conv_plan_destroy(&p->entries[i].plan);
    free(p->entries);
    free(p);
    *plans = NULL;
}

size_t ps_cuda_conv_plans_bytes(const ps_cuda_conv_plans *p)
{
    size_t bytes = 0;
    for (int i = 0; p && i < p->n_entries; i++) {
        const ps_conv_plan *plan = p->entries[i].plan;
        if (plan && ps_conv_plan_bytes(plan) > bytes) bytes = ps_conv_plan_bytes(plan);
    }
    return bytes;
}

void ps_cuda_conv_plans_limit(ps_cuda_conv_plans *p, size_t most_bytes)
{
    if (p) p->most_bytes = most_bytes;
}

/* What cuDNN 9.19 is slow at in exact float32, on an H200, layer by layer of ResNet-18
 * and BasicNet (bench/results). With 16 bits and TF32 they run on tensor cores. */
static bool is_exact(const ps_cuda_conv_plans *p, const ps_layer *l)
{
    return p->format == PS_FORMAT_FP32 && ps_conv_library_exact(p->library) &&
           l->groups == 1;
}

/* The gradient of the inputs took 1.2 to 1.7 times as long as the convolution with
 * mirrored weights, which adds the same products. With fewer channels that convolution
 * leaves half of its tiles empty. */
bool ps_cuda_conv_plans_mirror(const ps_cuda_conv_plans *p, const ps_layer *l)
{
    if (!p || !is_exact(p, l) || l->in.d[0] < 64) return false;
    for (int i = 0; i < 2; i++)
        if (l->stride[i] != 1 || l->padding[i] > l->dilation[i] * (l->kernel[i] - 1))
            return false;
    return true;
}

/* Both gradients of strided convolutions, and the gradient of weights that read pictures,
 * took 1.2 to 7 times as long as products of columns. One layer's gradient of the inputs
 * took 0.86 times as long, before col2im became faster. */
static bool products_are_faster(const ps_cuda_conv_plans *p, const ps_layer *l,
                                ps_conv_kind kind)
{
    if (kind == PS_CONV_FORWARD || !is_exact(p, l)) return false;
    const bool strided = l->stride[0] > 1 || l->stride[1] > 1;
    return strided || (kind == PS_CONV_BACKWARD_WEIGHT && l->in.d[0] <= 4);
}

static ps_conv_shape conv_plans_mirrored(ps_conv_shape s)
{
    ps_conv_shape m = s;
    m.kind = PS_CONV_FORWARD;
    for (int i = 0; i < 3; i++) {
        m.in[i] = s.out[i];
        m.out[i] = s.in[i];
    }
    for (int i = 0; i < 2; i++)
        m.padding[i] = s.dilation[i] * (s.kernel[i] - 1) - s.padding[i];
    return m;
}

static ps_conv_shape conv_plans_shape_of(const ps_cuda_conv_plans *p, const conv_entry *e)
{
    const ps_layer *l = e->layer;
    const ps_conv_shape s = {.kind = e->kind,
                             .format = p->format,
                             .add = e->add,
                             .channels_last = p->channels_last,
                             .n = e->n,
                             .in = {l->in.d[0], l->in.d[1], l->in.d[2]},
                             .out = {l->out.d[0], l->out.d[1], l->out.d[2]},
                             .kernel = {l->kernel[0], l->kernel[1]},
                             .stride = {l->stride[0], l->stride[1]},
                             .padding = {l->padding[0], l->padding[1]},
                             .dilation = {l->dilation[0], l->dilation[1]},
                             .groups = l->groups};
    bool mirror = e->kind == PS_CONV_BACKWARD_DATA && ps_cuda_conv_plans_mirror(p, l);
    return mirror ? conv_plans_mirrored(s) : s;
}

static ps_err conv_plans_append(ps_cuda_conv_plans *p, conv_entry e)
{
    PS_TRY(ps_mem_room(&p->entries, (uint32_t)p->n_entries, &p->room, sizeof *p->entries,
                       "plans of convolutions"));
    ps_conv_shape shape = conv_plans_shape_of(p, &e);
    if (!products_are_faster(p, e.layer, e.kind))
        PS_TRY(ps_conv_plan_create(p->library, &shape, p->most_bytes, &e.plan));
    p->entries[p->n_entries++] = e;
    return PS_OK;
}

ps_err ps_cuda_conv_plans_find(ps_cuda_conv_plans *p, const ps_layer *layer,
                               ps_conv_kind kind, int64_t n, bool add, ps_conv_plan **out)
{
    *out = NULL;
    if (!p) return PS_OK;
    for (int i = 0; i < p->n_entries; i++) {
        const conv_entry *e = &p->entries[i];
        if (e->layer != layer || e->kind != kind || e->n != n || e->add != add) continue;
        *out = e->plan;
        return PS_OK;
    }
    PS_TRY(conv_plans_append(
        p, (conv_entry){.layer = layer, .kind = kind, .n = n, .add = add}));
    *out = p->entries[p->n_entries - 1].plan;
    return PS_OK;
}
