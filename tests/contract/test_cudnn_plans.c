/* cuDNN's plans for the convolutions of BasicNet and ResNet-18 on an H200 that is only
 * described to it. Needs no GPU: it tests all of cudnn_conv.c except running the plans.
 */
#include "check.h"
#include "conv_library.h"

#define MOST_BYTES ((size_t)512 << 20)

/* The properties of an H200, in cuDNN's words. */
static const char h200[] =
    "{\"cudnnVersion\":91900,\"schemaVersion\":1,\"deviceVer\":900,\"driverVer\":13000,"
    "\"cudaDeviceId\":0,\"totalGlobalMem\":150754820096,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,"
    "\"deviceName\":\"NVIDIA H200\"}";

typedef struct layer {
    int64_t n, in, size, out;
    int kernel, stride, padding;
} layer;

static const layer layers[] = {
    {64, 1, 28, 32, 3, 1, 0},    {64, 32, 26, 64, 3, 1, 0},   {128, 3, 32, 64, 3, 1, 1},
    {128, 64, 32, 64, 3, 1, 1},  {128, 64, 32, 128, 3, 2, 1}, {128, 64, 32, 128, 1, 2, 0},
    {128, 256, 8, 512, 3, 2, 1}, {128, 512, 4, 512, 3, 1, 1}, {37, 512, 4, 512, 3, 1, 1},
};

typedef struct way {
    const char *name;
    ps_format format;
    bool tf32, channels_last;
} way;

static const way ways[] = {{.name = "float32", .format = PS_FORMAT_FP32},
                           {.name = "TF32", .format = PS_FORMAT_FP32, .tf32 = true},
                           {.name = "bf16", .format = PS_FORMAT_BF16},
                           {.name = "fp16", .format = PS_FORMAT_FP16},
                           {"bf16, channels last", PS_FORMAT_BF16, false, true},
                           {"fp16, channels last", PS_FORMAT_FP16, false, true}};

static ps_conv_shape shape_of(const layer *l, const way *w, ps_conv_kind kind, bool add)
{
    int64_t size = (l->size + 2 * l->padding - l->kernel) / l->stride + 1;
    return (ps_conv_shape){.kind = kind,
                           .format = w->format,
                           .add = add,
                           .channels_last = w->channels_last,
                           .n = l->n,
                           .in = {l->in, l->size, l->size},
                           .out = {l->out, size, size},
                           .kernel = {l->kernel, l->kernel},
                           .stride = {l->stride, l->stride},
                           .padding = {l->padding, l->padding},
                           .dilation = {1, 1},
                           .groups = 1};
}

/* Skips where there is no cuDNN. */
static ps_conv_library *open_described(bool tf32)
{
    const ps_conv_library_options options = {.tf32 = tf32, .described = h200};
    ps_conv_library *library;
    ps_err err = ps_conv_library_open(&options, &library);
    if (err == PS_ERR_UNSUPPORTED) {
        print_message("skipped: %s\n", ps_err_message());
        skip();
    }
    if (err != PS_OK) fail_msg("%s", ps_err_message());
    return library;
}

static ps_conv_plan *plan_of(ps_conv_library *library, const ps_conv_shape *shape,
                             size_t most_bytes)
{
    ps_conv_plan *plan;
    assert_ok(ps_conv_plan_create(library, shape, most_bytes, &plan));
    return plan;
}

/* When the library is opened again, as in another run, it gives the same plans. */
static void check_plan(ps_conv_library *a, ps_conv_library *b, const layer *l,
                       const way *w, ps_conv_kind kind, bool add)
{
    static const char *const kinds[] = {"forward", "data", "weight"};
    ps_conv_shape shape = shape_of(l, w, kind, add);
    ps_conv_plan *first = plan_of(a, &shape, MOST_BYTES);
    ps_conv_plan *second = plan_of(b, &shape, MOST_BYTES);
    char text[2][64];
    if (!first || !second)
        fail_msg("%s %s: none for %d -> %d channels", w->name, kinds[kind], (int)l->in,
                 (int)l->out);
    ps_conv_plan_describe(first, text[0], sizeof text[0]);
    ps_conv_plan_describe(second, text[1], sizeof text[1]);
    assert_string_equal(text[0], text[1]);
    assert_true(ps_conv_plan_bytes(first) <= MOST_BYTES);
    print_message("%s %d x %d of %d, %dx%d/%d -> %d, %s%s: %s\n", w->name, (int)l->n,
                  (int)l->size, (int)l->in, l->kernel, l->kernel, l->stride, (int)l->out,
                  kinds[kind], add ? " added" : "", text[0]);
    ps_conv_plan_destroy(&first);
    ps_conv_plan_destroy(&second);
}

TEST(test_every_convolution_has_a_plan)
{
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        ps_conv_library *a = open_described(ways[w].tf32);
        ps_conv_library *b = open_described(ways[w].tf32);
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
            for (int kind = 0; kind < PS_CONV_KINDS; kind++)
                for (int add = 0; add < 2; add++)
                    check_plan(a, b, &layers[l], &ways[w], (ps_conv_kind)kind, add);
        }
        ps_conv_library_close(&a);
        ps_conv_library_close(&b);
    }
}

/* cuDNN's kernels for exact float32 take images in one order only. It copies images in
 * another order in each pass, as its workspace shows. */
TEST(test_exact_kernels_copy_no_images)
{
    ps_conv_library *library = open_described(false);
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        for (int kind = PS_CONV_FORWARD; kind <= PS_CONV_BACKWARD_DATA; kind++) {
            ps_conv_shape shape = shape_of(&layers[l], &ways[0], kind, false);
            ps_conv_plan *plan = plan_of(library, &shape, MOST_BYTES);
            size_t outputs =
                (size_t)(shape.n * shape.out[0] * shape.out[1] * shape.out[2]);
            assert_non_null(plan);
            assert_true(ps_conv_plan_bytes(plan) < outputs * sizeof(float));
            ps_conv_plan_destroy(&plan);
        }
    }
    ps_conv_library_close(&library);
}

/* Scratch for all directions of all layers whose channels fill the units of 16 bits. */
static size_t scratch_of(ps_conv_library *library, const way *w)
{
    size_t bytes = 0;
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        for (int kind = 0; kind < PS_CONV_KINDS && layers[l].in >= 32; kind++) {
            ps_conv_shape shape = shape_of(&layers[l], w, (ps_conv_kind)kind, false);
            ps_conv_plan *plan = plan_of(library, &shape, MOST_BYTES);
            assert_non_null(plan);
            bytes += ps_conv_plan_bytes(plan);
            ps_conv_plan_destroy(&plan);
        }
    }
    return bytes;
}

/* cuDNN's kernels for 16 bits take images whose channels are last. It copies others. */
TEST(test_channels_last_need_no_copies)
{
    ps_conv_library *library = open_described(false);
    for (int w = 2; w < 4; w++) {
        const size_t first = scratch_of(library, &ways[w]);
        const size_t last = scratch_of(library, &ways[w + 2]);
        print_message("%s: scratch of %.0f MiB, channels last %.0f MiB\n", ways[w].name,
                      (double)first / 1048576.0, (double)last / 1048576.0);
        assert_true(last < first / 8);
    }
    ps_conv_library_close(&library);
}

/* A layer of ResNet-50 whose copies are larger than what a kernel may have. */
TEST(test_large_layers_have_plans_with_channels_last)
{
    static const layer large = {256, 256, 56, 128, 1, 1, 0};
    ps_conv_library *library = open_described(false);
    for (int kind = 0; kind < PS_CONV_KINDS; kind++) {
        ps_conv_shape shape = shape_of(&large, &ways[4], (ps_conv_kind)kind, false);
        ps_conv_plan *plan = plan_of(library, &shape, MOST_BYTES / 32);
        assert_non_null(plan);
        ps_conv_plan_destroy(&plan);
    }
    ps_conv_library_close(&library);
}

TEST(test_memory_is_bounded)
{
    ps_conv_library *library = open_described(false);
    ps_conv_shape shape = shape_of(&layers[3], &ways[2], PS_CONV_FORWARD, false);
    ps_conv_plan *free_plan = plan_of(library, &shape, MOST_BYTES);
    assert_non_null(free_plan);
    size_t bytes = ps_conv_plan_bytes(free_plan);
    assert_true(bytes > 1 << 20); // else the next check means nothing
    ps_conv_plan *bound = plan_of(library, &shape, bytes / 2);
    if (bound) assert_true(ps_conv_plan_bytes(bound) <= bytes / 2);
    ps_conv_plan_destroy(&bound);
    ps_conv_plan_destroy(&free_plan);
    ps_conv_library_close(&library);
}

TEST(test_a_described_gpu_runs_nothing)
{
    ps_conv_library *library = open_described(false);
    ps_conv_shape shape = shape_of(&layers[0], &ways[0], PS_CONV_FORWARD, false);
    ps_conv_plan *plan = plan_of(library, &shape, MOST_BYTES);
    assert_int_equal(ps_conv_plan_run(plan, NULL, NULL, NULL, NULL, "a"), PS_ERR_ARG);
    ps_conv_plan_destroy(&plan);
    ps_conv_library_close(&library);
}

TEST(test_shapes_that_fit_nothing_are_no_crash)
{
    ps_conv_library *library = open_described(false);
    ps_conv_shape shape = shape_of(&layers[0], &ways[0], PS_CONV_FORWARD, false);
    ps_conv_plan *plan = NULL;
    shape.out[1]++; // not what comes out
    assert_int_not_equal(ps_conv_plan_create(library, &shape, MOST_BYTES, &plan), PS_OK);
    assert_null(plan);
    ps_conv_library_close(&library);
}
