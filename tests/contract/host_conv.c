/* A library of convolutions (conv_library.h) that runs on the host in a GPU's place:
 * plain loops from the definition. It is opened only with PS_HOST_CONV=1.
 *
 * Like cuDNN's, its plans need memory for a moment, as much as the images. They fill it
 * with rubbish, so a value that was left there shows. It refuses 3 x 3 windows with an
 * odd number of samples: the device computes these itself. So it does 4 x 4 windows, if
 * the channels are last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv_library.h"
#include "conv_tap.h"
#include "host_gpu.h"
#include "mem.h"

struct ps_conv_library {
    void *queue;
};

struct ps_conv_plan {
    ps_conv_library *library;
    ps_conv_shape shape;
    size_t bytes;
    bool ran;
};

typedef struct conv_call {
    ps_conv_shape s;
    ps_values x, w, y;
    void *scratch;
    size_t bytes;
} conv_call;

ps_err ps_conv_library_open(const ps_conv_library_options *options, ps_conv_library **out)
{
    const char *wanted = getenv("PS_HOST_CONV");
    *out = NULL;
    if (!wanted || strcmp(wanted, "1") != 0)
        return ps_err_set(PS_ERR_UNSUPPORTED, "train.cudnn: PS_HOST_CONV is not 1");
    PS_TRY(PS_NEW(out, 1, "library"));
    (*out)->queue = options->queue;
    return PS_OK;
}

void ps_conv_library_close(ps_conv_library **library)
{
    free(*library);
    *library = NULL;
}

bool ps_conv_library_exact(const ps_conv_library *library)
{
    return true;
}

void ps_conv_library_describe(const ps_conv_library *library, char *out, size_t bytes)
{
    snprintf(out, bytes, "the host's convolutions");
}

static int64_t count(const ps_conv_shape *s, const int64_t size[3])
{
    return s->n * size[0] * size[1] * size[2];
}

static int64_t weights(const ps_conv_shape *s)
{
    return s->out[0] * s->in[0] / s->groups * s->kernel[0] * s->kernel[1];
}

ps_err ps_conv_plan_create(ps_conv_library *library, const ps_conv_shape *shape,
                           size_t most_bytes, ps_conv_plan **out)
{
    size_t bytes = (size_t)(count(shape, shape->in) + count(shape, shape->out)) *
                   ps_format_bytes(shape->format);
    *out = NULL;
    const bool lacks =
        shape->kernel[0] == 3 || (shape->channels_last && shape->kernel[0] == 4);
    if (bytes > most_bytes || (shape->n % 2 == 1 && lacks)) return PS_OK;
    PS_TRY(PS_NEW(out, 1, "plan"));
    **out = (ps_conv_plan){.library = library, .shape = *shape, .bytes = bytes};
    return PS_OK;
}

void ps_conv_plan_destroy(ps_conv_plan **plan)
{
    free(*plan);
    *plan = NULL;
}

size_t ps_conv_plan_bytes(const ps_conv_plan *plan)
{
    return plan->bytes;
}

void ps_conv_plan_describe(const ps_conv_plan *plan, char *out, size_t bytes)
{
    snprintf(out, bytes, "loops");
}

/* s->kind names the array to which it adds products of the other two, for one plane of
 * weights: x are the images in, w the weights, y the images out. */
static void add_products(const ps_conv_shape *s, double *x, double *w, double *y,
                         int64_t o, int64_t i)
{
    conv_tap tap = {.in = {s->in[1], s->in[2]},
                    .out = {s->out[1], s->out[2]},
                    .stride = {s->stride[0], s->stride[1]},
                    .padding = {s->padding[0], s->padding[1]},
                    .dilation = {s->dilation[0], s->dilation[1]}};
    const int64_t kernel = s->kernel[0] * s->kernel[1], in = s->in[0] / s->groups;
    w += (o * in + i % in) * kernel;
    for (int64_t n = 0; n < s->n; n++) {
        double *xs = x + (n * s->in[0] + i) * s->in[1] * s->in[2];
        double *ys = y + (n * s->out[0] + o) * s->out[1] * s->out[2];
        for (int64_t k = 0; k < kernel; k++) {
            tap.at[0] = k / s->kernel[1], tap.at[1] = k % s->kernel[1];
            if (s->kind == PS_CONV_FORWARD)
                conv_tap_forward(&tap, w[k], xs, ys);
            else if (s->kind == PS_CONV_BACKWARD_DATA)
                conv_tap_backward_data(&tap, w[k], ys, xs);
            else
                w[k] += conv_tap_backward_weight(&tap, xs, ys);
        }
    }
}

/* Images or weights, (outer, channels, plane). */
typedef struct planes {
    int64_t outer, channels, plane;
    bool channels_last;
} planes;

static planes images_of(const ps_conv_shape *s, const int64_t size[3])
{
    return (planes){s->n, size[0], size[1] * size[2], s->channels_last};
}

static planes weights_of(const ps_conv_shape *s)
{
    return (planes){s->out[0], s->in[0] / s->groups, s->kernel[0] * s->kernel[1],
                    s->channels_last};
}

static int64_t planes_count(const planes *p)
{
    return p->outer * p->channels * p->plane;
}

/* Where element i of (outer, channels, plane) lies. */
static size_t place(const planes *p, int64_t i)
{
    if (!p->channels_last) return (size_t)i;
    const int64_t at = i % p->plane, channel = i / p->plane % p->channels;
    const int64_t outer = i / p->plane / p->channels;
    return (size_t)((outer * p->plane + at) * p->channels + channel);
}

/* Owned by the caller. */
static double *read_values(ps_values v, const planes *p)
{
    double *out = malloc(sizeof *out * (size_t)planes_count(p));
    for (int64_t i = 0; i < planes_count(p); i++)
        out[i] = (double)ps_get(v, place(p, i));
    return out;
}

static void run(const void *args)
{
    const conv_call *c = args;
    const ps_conv_shape *s = &c->s;
    const ps_values tensors[] = {c->x, c->w, c->y};
    const planes at[] = {images_of(s, s->in), weights_of(s), images_of(s, s->out)};
    const int made = s->kind == PS_CONV_FORWARD         ? 2
                     : s->kind == PS_CONV_BACKWARD_DATA ? 0
                                                        : 1;
    double *values[3];
    for (int t = 0; t < 3; t++)
        values[t] = t == made ? calloc((size_t)planes_count(&at[t]), sizeof **values)
                              : read_values(tensors[t], &at[t]);
    memset(c->scratch, 0xA5, c->bytes);
    for (int64_t o = 0; o < s->out[0]; o++) {
        for (int64_t i = 0; i < s->in[0]; i++)
            if (i / (s->in[0] / s->groups) == o / (s->out[0] / s->groups))
                add_products(s, values[0], values[1], values[2], o, i);
    }
    for (int64_t i = 0; i < planes_count(&at[made]); i++)
        ps_set(tensors[made], place(&at[made], i), (float)values[made][i], s->add);
    for (int t = 0; t < 3; t++)
        free(values[t]);
}

ps_err ps_conv_plan_run(ps_conv_plan *plan, void *x, void *w, void *y, void *scratch,
                        const char *who)
{
    const ps_conv_shape *s = &plan->shape;
    const size_t size = ps_format_bytes(s->format);
    void *queue = plan->library->queue;
    const conv_call call = {*s,      {x, s->format}, {w, s->format}, {y, s->format},
                            scratch, plan->bytes};
    host_gpu_check(queue, x, (size_t)count(s, s->in) * size, who);
    host_gpu_check(queue, y, (size_t)count(s, s->out) * size, who);
    host_gpu_check(queue, w, (size_t)weights(s) * size, who);
    host_gpu_check(queue, scratch, plan->bytes, who);
    host_gpu_counted.channels_last += s->channels_last;
    bool first = !plan->ran;
    plan->ran = true;
    return host_gpu_call(queue, run, &call, sizeof call, first, who);
}
