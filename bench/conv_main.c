/* ps-bench-conv: one convolution of the CPU device, with the caller's numbers.
 *
 *   ps-bench-conv PRECISION WINOGRAD N C H W OUT KERNEL STRIDE PADDING DILATION GROUPS
 *                 < ARRAYS > RESULTS
 *
 * PRECISION and WINOGRAD are words of train.precision and train.winograd. ARRAYS are
 * float32 in PyTorch's order: x (N, C, H, W), weight (OUT, C / GROUPS, KERNEL, KERNEL),
 * bias (OUT), dy (N, OUT, OH, OW). RESULTS are y, dx, dweight, dbias. bench/rounding
 * compares them with float64. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_words.h"
#include "cpu_conv.h"
#include "mem.h"

enum { SIZES = 10, ARRAYS = 4, FIRST_SIZE = 3 };

typedef struct job {
    ps_layer layer;
    ps_winograd winograd;
    ps_cpu_factors factors;
    ps_cpu_shape in, out; // PyTorch's order
    ps_cpu_conv conv;
    ps_memory_plan memory;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    float *x, *weight, *bias, *dy;          // given
    float *y, *dx, *dweight, *dbias;        // results
    float *own_x, *own_y, *own_dy, *own_dx; // in the layouts of conv
    void *factors_x, *factors_dy;           // likewise, as conv takes them
} job;

static ps_err read_words(job *j, char **argv)
{
    int precision = 0, winograd = 0;
    if (!ps_word_find(ps_precision_words, argv[1], &precision))
        return ps_err_set(PS_ERR_ARG, "'%s' is not a word of train.precision", argv[1]);
    if (!ps_word_find(ps_winograd_words, argv[2], &winograd))
        return ps_err_set(PS_ERR_ARG, "'%s' is not a word of train.winograd", argv[2]);
    j->winograd = (ps_winograd)winograd;
    return ps_cpu_factors_choose((ps_precision)precision, &j->factors);
}

static int64_t outputs_along(int side, int kernel, const int *size)
{
    const int stride = size[6], padding = size[7], dilation = size[8];
    return (side + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

static ps_err read_arguments(job *j, char **argv)
{
    int size[SIZES];
    PS_TRY(read_words(j, argv));
    for (int i = 0; i < SIZES; i++) {
        size[i] = atoi(argv[FIRST_SIZE + i]);
        if (size[i] < (i == 7 ? 0 : 1))
            return ps_err_set(PS_ERR_ARG, "'%s' is not a size", argv[FIRST_SIZE + i]);
    }
    const int kernel = size[5], groups = size[9];
    const int64_t oh = outputs_along(size[2], kernel, size);
    const int64_t ow = outputs_along(size[3], kernel, size);
    if (oh < 1 || ow < 1 || size[1] % groups != 0 || size[4] % groups != 0)
        return ps_err_set(PS_ERR_ARG, "there is no convolution of these sizes");
    j->layer = (ps_layer){.kind = PS_LAYER_CONV2D,
                          .name = "conv",
                          .in = {3, {size[1], size[2], size[3]}},
                          .out = {3, {size[4], oh, ow}},
                          .kernel = {kernel, kernel},
                          .stride = {size[6], size[6]},
                          .padding = {size[7], size[7]},
                          .dilation = {size[8], size[8]},
                          .groups = groups};
    j->in = ps_cpu_shape_make(size[0], &j->layer.in, 1);
    j->out = ps_cpu_shape_make(size[0], &j->layer.out, 1);
    return PS_OK;
}

static ps_err make_conv(job *j)
{
    const ps_cpu_conv_use use = {.training = true,
                                 .data_gradient = true,
                                 .winograd = j->winograd,
                                 .factors = j->factors,
                                 .narrow_y = true,
                                 .narrow_dx = true};
    PS_TRY(ps_dnnl_check(dnnl_engine_create(&j->engine, dnnl_cpu, 0), "conv", "engine"));
    PS_TRY(ps_dnnl_check(
        dnnl_stream_create(&j->stream, j->engine, dnnl_stream_default_flags), "conv",
        "stream"));
    PS_TRY(ps_cpu_conv_init(&j->conv, j->engine, &j->layer, &j->in, &use));
    PS_TRY(ps_cpu_conv_plan_forward(&j->conv, &j->memory, true));
    PS_TRY(ps_cpu_conv_plan_backward(&j->conv, &j->memory));
    return ps_memory_plan_layout(&j->memory, NULL, NULL);
}

static ps_err make_array(float **array, int64_t n)
{
    return ps_mem_zalloc_aligned(array, (size_t)n * sizeof **array, "array");
}

static ps_err make_arrays(job *j)
{
    const int64_t n_in = ps_cpu_shape_count(&j->in), n_out = ps_cpu_shape_count(&j->out);
    const int64_t own_in = ps_cpu_shape_count(&j->conv.in);
    const int64_t own_out = ps_cpu_shape_count(&j->conv.out);
    const struct {
        float **array;
        int64_t n;
    } arrays[] = {{&j->x, n_in},
                  {&j->weight, j->conv.n_weights},
                  {&j->bias, j->out.c},
                  {&j->dy, n_out},
                  {&j->y, n_out},
                  {&j->dx, n_in},
                  {&j->dweight, j->conv.n_weights},
                  {&j->dbias, j->out.c},
                  {&j->own_x, own_in},
                  {&j->own_y, own_out},
                  {&j->own_dy, own_out},
                  {&j->own_dx, own_in}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        PS_TRY(make_array(arrays[i].array, arrays[i].n));
        if (i >= ARRAYS) continue;
        if (fread(*arrays[i].array, sizeof(float), (size_t)arrays[i].n, stdin) !=
            (size_t)arrays[i].n)
            return ps_err_set(PS_ERR_IO, "standard input ends before its array %zu", i);
    }
    return PS_OK;
}

/* What the products read of x (of its layout): a copy as narrow factors, or x. */
static ps_err make_factors(const ps_cpu_conv *c, const ps_cpu_shape *shape, float *x,
                           void **out)
{
    const int64_t n = ps_cpu_shape_count(shape);
    float *room; // of at least as many bytes
    *out = x;
    if (c->factors == PS_CPU_FLOAT32) return PS_OK;
    PS_TRY(make_array(&room, n));
    ps_cpu_narrow(c->factors, n, x, room);
    *out = room;
    return PS_OK;
}

/* What a step stores of a result: 16 bits, if the products took such factors.
 * made_narrow: the library has rounded it, into the first half of the array. */
static ps_err store_result(const job *j, const ps_cpu_shape *shape, bool made_narrow,
                           float *array)
{
    const int64_t n = ps_cpu_shape_count(shape);
    uint16_t *narrow;
    if (!ps_cpu_factors_are_narrow(j->factors)) return PS_OK;
    PS_TRY(ps_mem_zalloc_aligned(&narrow, (size_t)n * sizeof *narrow, "result"));
    if (made_narrow)
        memcpy(narrow, array, (size_t)n * sizeof *narrow);
    else
        ps_cpu_narrow(j->factors, n, array, narrow);
    ps_cpu_widen(j->factors, n, narrow, array);
    free(narrow);
    return PS_OK;
}

static ps_err run_passes(job *j)
{
    ps_cpu_conv *c = &j->conv;
    ps_cpu_convert(&j->in, j->x, &c->in, j->own_x, false);
    ps_cpu_convert(&j->out, j->dy, &c->out, j->own_dy, false);
    PS_TRY(make_factors(c, &c->in, j->own_x, &j->factors_x));
    PS_TRY(make_factors(c, &c->out, j->own_dy, &j->factors_dy));
    const ps_cpu_conv_arrays arrays = {j->factors_x, j->own_y,  j->factors_dy,
                                       j->own_dx,    j->weight, j->bias};
    PS_TRY(ps_cpu_conv_bind(c, &j->memory, &arrays));
    PS_TRY(ps_cpu_conv_forward(c, j->stream, j->factors_x));
    PS_TRY(ps_cpu_conv_backward(c, j->stream, j->factors_x, j->dweight, j->dbias, false));
    PS_TRY(store_result(j, &c->out, ps_cpu_factors_are_narrow(c->factors), j->own_y));
    PS_TRY(store_result(j, &c->in, c->narrow_dx, j->own_dx));
    ps_cpu_convert(&c->out, j->own_y, &j->out, j->y, false);
    ps_cpu_convert(&c->in, j->own_dx, &j->in, j->dx, false);
    return PS_OK;
}

static ps_err write_results(const job *j)
{
    const size_t n_in = (size_t)ps_cpu_shape_count(&j->in);
    const size_t n_out = (size_t)ps_cpu_shape_count(&j->out);
    const size_t n_bias = (size_t)j->out.c, n_weights = (size_t)j->conv.n_weights;
    if (fwrite(j->y, sizeof(float), n_out, stdout) != n_out ||
        fwrite(j->dx, sizeof(float), n_in, stdout) != n_in ||
        fwrite(j->dweight, sizeof(float), n_weights, stdout) != n_weights ||
        fwrite(j->dbias, sizeof(float), n_bias, stdout) != n_bias || fflush(stdout) != 0)
        return ps_err_errno(PS_ERR_IO, "standard output");
    return PS_OK;
}

static ps_err run(job *j, char **argv)
{
    PS_TRY(read_arguments(j, argv));
    PS_TRY(make_conv(j));
    PS_TRY(make_arrays(j));
    PS_TRY(run_passes(j));
    return write_results(j);
}

int main(int argc, char **argv)
{
    job j = {0};
    if (argc != FIRST_SIZE + SIZES) {
        fprintf(stderr, "usage: ps-bench-conv PRECISION WINOGRAD N C H W OUT KERNEL "
                        "STRIDE PADDING DILATION GROUPS (bench/rounding calls it)\n");
        return 2;
    }
    ps_err err = run(&j, argv);
    if (err != PS_OK) fprintf(stderr, "ps-bench-conv: %s\n", ps_err_message());
    return err == PS_OK ? 0 : 1; // the system takes the memory back
}
