/* Which of oneDNN's implementations the convolutions of the CPU device run. The linker
 * puts wrap_ functions around two of the library's calls (tests/CMakeLists.txt): one
 * counts what runs, the other may say that everything is reference code. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "device_rig.h"
#include "dnnl_compat.h"
#include "log.h"

static struct {
    bool says_reference, spoils; // spoils: scratch memory, which nobody may read first
    bool guards; // looks whether a primitive writes past its scratch memory
    int n_overruns;
    int n_run, n_reference, n_products, n_winograd, n_bf16, n_fp16;
    int n_inner; // inner products
} library;

dnnl_status_t __real_dnnl_primitive_desc_query(const_dnnl_primitive_desc_t pd,
                                               dnnl_query_t what, int index, void *out);
dnnl_status_t __wrap_dnnl_primitive_desc_query(const_dnnl_primitive_desc_t pd,
                                               dnnl_query_t what, int index, void *out);
dnnl_status_t __wrap_dnnl_primitive_desc_query(const_dnnl_primitive_desc_t pd,
                                               dnnl_query_t what, int index, void *out)
{
    dnnl_status_t s = __real_dnnl_primitive_desc_query(pd, what, index, out);
    if (library.says_reference && what == dnnl_query_impl_info_str)
        *(const char **)out = "ref:any";
    return s;
}

/* Fills what the primitive has for itself with NaN, of any type. */
static void spoil_scratch(int n, const dnnl_exec_arg_t *args)
{
    for (int i = 0; i < n; i++) {
        const ps_dnnl_md *md = NULL;
        void *scratch = NULL;
        if (args[i].arg != DNNL_ARG_SCRATCHPAD) continue;
        dnnl_memory_get_memory_desc(args[i].memory, &md);
        dnnl_memory_get_data_handle(args[i].memory, &scratch);
        if (scratch) memset(scratch, 0xFF, dnnl_memory_desc_get_size(md));
    }
}

dnnl_status_t __real_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args);

/* Executes with other scratch memory, behind which a guard has to stay as it is. */
static dnnl_status_t execute_guarded(const_dnnl_primitive_t primitive,
                                     dnnl_stream_t stream, int n,
                                     const dnnl_exec_arg_t *args, dnnl_memory_t memory)
{
    enum { GUARD = 4096, GUARD_BYTE = 0x5A };
    const ps_dnnl_md *md = NULL;
    void *own = NULL;
    dnnl_memory_get_memory_desc(memory, &md);
    dnnl_memory_get_data_handle(memory, &own);
    const size_t bytes = dnnl_memory_desc_get_size(md);
    unsigned char *scratch = aligned_alloc(4096, (bytes + GUARD + 4095) / 4096 * 4096);
    assert_non_null(scratch);
    memset(scratch + bytes, GUARD_BYTE, GUARD);
    dnnl_memory_set_data_handle(memory, scratch);
    dnnl_status_t s = __real_dnnl_primitive_execute(primitive, stream, n, args);
    dnnl_stream_wait(stream);
    for (size_t i = 0; i < GUARD; i++)
        if (scratch[bytes + i] != GUARD_BYTE) {
            library.n_overruns++;
            break;
        }
    dnnl_memory_set_data_handle(memory, own);
    free(scratch);
    return s;
}

dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args);
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args)
{
    const_dnnl_primitive_desc_t pd = NULL;
    const char *name = "";
    dnnl_primitive_kind_t kind = dnnl_undefined_primitive;
    dnnl_primitive_get_primitive_desc(primitive, &pd);
    dnnl_primitive_desc_query(pd, dnnl_query_primitive_kind, 0, &kind);
    library.n_inner += kind == dnnl_inner_product;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    library.n_run++;
    library.n_reference += strncmp(name, "ref", 3) == 0;
    library.n_products += strstr(name, "gemm:") != NULL;
    library.n_winograd += strstr(name, "wino") != NULL;
    library.n_bf16 += strstr(name, "bf16") != NULL;
    // the library's names for AVX512-FP16: its own, or its level's
    library.n_fp16 += strstr(name, "fp16") != NULL || strstr(name, "avx10_1") != NULL;
    if (library.spoils) spoil_scratch(n, args);
    for (int i = 0; i < n && library.guards; i++)
        if (args[i].arg == DNNL_ARG_SCRATCHPAD)
            return execute_guarded(primitive, stream, n, args, args[i].memory);
    return __real_dnnl_primitive_execute(primitive, stream, n, args);
}

static const ps_pass training = {.training = true, .grad_scale = 1.0f};
static const rig_device cpu = {.kind = PS_DEVICE_CPU, .rounding = &rig_float32};

/* A step of the first n samples. */
static void make_step(rig *r, int n)
{
    ps_batch batch = rig_batch(r, n);
    assert_ok(ps_program_forward(r->program, &batch, &training, NULL));
    assert_ok(ps_program_backward(r->program, &batch, &training));
}

static void run_step(const char *input, const char *layers, int n)
{
    rig r;
    char model[512];
    snprintf(model, sizeof model,
             "%s, relu, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}",
             layers);
    rig_init(&r, &cpu, input, "cross_entropy", model, n);
    for (int size = n; size > 0; size--)
        make_step(&r, size);
    rig_fini(&r);
}

static void check_no_reference(const char *input, const char *layers)
{
    library.n_run = library.n_reference = 0;
    run_step(input, layers, 1);
    assert_true(library.n_run > 0);
    if (library.n_reference > 0)
        fail_msg("%s of %s runs %d primitives of reference code", layers, input,
                 library.n_reference);
}

/* in, out, kernel, stride, side: each took 100 to 1,000 times as long in an earlier
 * version. */
static const int shapes[][5] = {
    {4, 16, 3, 1, 8},   {5, 16, 3, 1, 8},  {6, 16, 5, 1, 14},  {8, 8, 3, 1, 8},
    {8, 12, 3, 1, 8},   {8, 16, 3, 1, 8},  {10, 20, 5, 1, 12}, {10, 32, 3, 1, 8},
    {12, 12, 3, 1, 8},  {12, 16, 3, 1, 8}, {15, 31, 3, 1, 8},  {17, 33, 3, 1, 8},
    {1, 16, 20, 1, 28}, {1, 8, 15, 3, 32}, {3, 32, 16, 16, 32}};

TEST(test_no_reference_code_runs)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *s = shapes[i];
        char input[64], layers[256];
        snprintf(input, sizeof input, "[%d, %d, %d]", s[0], s[4], s[4]);
        snprintf(layers, sizeof layers,
                 "{conv2d: {name: a, out: %d, kernel: %d, stride: %d}}", s[1], s[2],
                 s[3]);
        check_no_reference(input, layers);
        snprintf(input, sizeof input, "[1, %d, %d]", s[4], s[4]);
        snprintf(layers, sizeof layers,
                 "{conv2d: {name: a, out: %d, kernel: 1}}, relu, {conv2d: {name: b, out: "
                 "%d, kernel: %d, stride: %d}}",
                 s[0], s[1], s[2], s[3]);
        check_no_reference(input, layers);
    }
}

/* For such windows the library has fast AVX2 code only if the padding is part of the
 * input. */
TEST(test_padded_large_windows_have_kernels)
{
    rig r;
    rig_init(&r, &cpu, "[3, 63, 63]", "cross_entropy",
             "{conv2d: {name: a, out: 32, kernel: 11, stride: 4, padding: 2}}, relu, "
             "{avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}",
             2);
    library.n_products = 0;
    make_step(&r, 2);
    if (dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx2)
        assert_int_equal(library.n_products, 0);
    rig_fini(&r);
}

/* Returns how many kernels of bf16 a step of a depthwise convolution runs. */
static int count_bf16(int kernel)
{
    static const rig_device narrow = {.kind = PS_DEVICE_CPU,
                                      .rounding = &rig_sixteen_bits[0]};
    rig r;
    char layers[160];
    snprintf(layers, sizeof layers,
             "{conv2d: {name: a, out: 32, kernel: %d, padding: %d, groups: 32}}, relu, "
             "{avg_pool2d: global}, flatten",
             kernel, kernel / 2);
    rig_init(&r, &narrow, "[32, 14, 14]", "cross_entropy", layers, 2);
    library.n_bf16 = 0;
    make_step(&r, 2);
    rig_fini(&r);
    return library.n_bf16;
}

/* oneDNN's bf16 gradient of these weights is slow. */
TEST(test_wide_depthwise_windows_are_float32_in_bf16)
{
    assert_int_equal(count_bf16(5), 0);
    assert_int_equal(count_bf16(7), 0);
    if (dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16)
        assert_true(count_bf16(3) > 0);
}

/* No result depends on what a kernel's scratch memory held before. Widths, kernels,
 * strides and borders of rows: some are shorter than a stride. */
TEST(test_scratch_memory_is_written_first)
{
    static const int rows[][4] = {{1, 3, 2, 1}, {2, 4, 3, 1}, {1, 2, 2, 1}, {2, 2, 3, 1},
                                  {1, 5, 3, 2}, {3, 3, 2, 1}, {7, 5, 3, 2}, {4, 1, 3, 0}};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const int *r = rows[i / 2];
        const rig_device device = {.kind = PS_DEVICE_CPU,
                                   .rounding =
                                       i % 2 ? &rig_sixteen_bits[0] : &rig_float32};
        char input[64], layers[300];
        rig model;
        snprintf(input, sizeof input, "[16, 9, %d]", r[0]);
        snprintf(
            layers, sizeof layers,
            "{conv2d: {name: a, out: 8, kernel: 1}}, tanh, {conv2d: {name: b, out: "
            "24, kernel: [3, %d], stride: [2, %d], padding: [1, %d]}}, tanh, flatten, "
            "{linear: {name: fc, out: 5}}",
            r[1], r[2], r[3]);
        rig_init(&model, &device, input, "mse", layers, 3);
        library.spoils = true;
        rig_compare(&model, 3, &training);
        library.spoils = false;
        rig_fini(&model);
    }
}

/* What lies behind it is another layer's, or another thread's part. */
TEST(test_scratch_memory_is_not_overrun)
{
    library.n_overruns = 0;
    library.guards = true;
    for (int channels = 1; channels < 20; channels++) {
        char input[32];
        snprintf(input, sizeof input, "[%d, 32, 32]", channels);
        run_step(input, "{conv2d: {name: c, out: 8, kernel: 1, stride: 2}}", 1);
    }
    library.guards = false;
    assert_int_equal(library.n_overruns, 0);
}

/* All passes, except that AVX512-FP16 has none for the gradients of weights. */
TEST(test_fp16_has_kernels)
{
    enum { PASSES = 3 }; // two forward, one back
    static const rig_device narrow = {.kind = PS_DEVICE_CPU,
                                      .rounding = &rig_sixteen_bits[1]};
    const ps_device_options options = {.threads = 1, .precision = PS_PRECISION_FP16};
    ps_device *device = NULL;
    if (ps_device_open(PS_DEVICE_CPU, &options, &device) != PS_OK) {
        print_message("skipped: %s\n", ps_err_message());
        return;
    }
    ps_device_close(&device);
    rig r;
    rig_init(&r, &narrow, "[3, 12, 12]", "cross_entropy",
             "{conv2d: {name: a, out: 16, kernel: 3, padding: 1}}, relu, {conv2d: {name: "
             "b, out: 24, kernel: 5}}, relu, {avg_pool2d: global}, flatten",
             2);
    library.n_fp16 = library.n_reference = 0;
    make_step(&r, 2);
    assert_true(library.n_fp16 >= PASSES);
    assert_int_equal(library.n_reference, 0);
    rig_fini(&r);
}

/* Returns how many passes are products in a step of two convolutions of that many
 * channels. */
static int count_products(const rig_rounding *rounding, int channels, int side)
{
    const rig_device device = {.kind = PS_DEVICE_CPU, .rounding = rounding};
    rig r;
    char input[64], layers[200];
    snprintf(input, sizeof input, "[%d, %d, %d]", channels, side, side);
    snprintf(layers, sizeof layers,
             "{conv2d: {name: a, out: %d, kernel: 3, padding: 1}}, relu, {conv2d: {name: "
             "b, out: %d, kernel: 3, padding: 1}}, relu, {avg_pool2d: global}, flatten",
             channels, channels);
    rig_init(&r, &device, input, "cross_entropy", layers, 2);
    library.n_inner = 0;
    make_step(&r, 2);
    rig_fini(&r);
    return library.n_inner;
}

/* Where the planes have few positions and the weights are many. */
TEST(test_small_planes_are_products)
{
    assert_int_equal(count_products(&rig_float32, 96, 4), 2);
    assert_int_equal(count_products(&rig_float32, 96, 2), 2);
    assert_int_equal(count_products(&rig_float32, 96, 5), 0);
    assert_int_equal(count_products(&rig_float32, 64, 4), 0);
    if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) !=
        dnnl_cpu_isa_avx512_core_amx)
        return;
    assert_int_equal(count_products(&rig_sixteen_bits[0], 96, 4), 5);
    assert_int_equal(count_products(&rig_sixteen_bits[0], 96, 5), 0);
}

typedef struct winograd_passes {
    int forward, gradients, evaluation;
} winograd_passes;

static int winograd_forward(rig *r, ps_program *program, int n, const ps_pass *pass)
{
    ps_batch batch = rig_batch(r, n);
    library.n_winograd = 0;
    assert_ok(ps_program_forward(program, &batch, pass, NULL));
    return library.n_winograd;
}

/* Evaluates in a program of its own, as a job does. */
static int winograd_evaluation(rig *r, int n)
{
    const ps_program_options options = {
        .spec = &r->spec, .max_batch = n, .params = r->params, .buffers = r->buffers};
    ps_program *program = NULL;
    assert_ok(ps_program_create(r->device, &options, &program));
    const int made = winograd_forward(r, program, n, &(ps_pass){.training = false});
    ps_program_destroy(&program);
    return made;
}

/* How many passes use Winograd's algorithm in two convolutions of `channels`, with n
 * samples. */
static winograd_passes winograd_of(ps_winograd allowed, int channels, int side, int n)
{
    rig r;
    rig_device device = cpu;
    device.winograd = allowed;
    char model[256];
    snprintf(
        model, sizeof model,
        "{conv2d: {name: a, out: %d, kernel: 1}}, {conv2d: {name: b, out: %d, kernel: "
        "3, padding: 1}}, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}",
        channels, channels);
    char input[64];
    snprintf(input, sizeof input, "[1, %d, %d]", side, side);
    rig_init(&r, &device, input, "cross_entropy", model, n);
    winograd_passes made = {.forward = winograd_forward(&r, r.program, n, &training)};
    ps_batch batch = rig_batch(&r, n);
    library.n_winograd = 0;
    assert_ok(ps_program_backward(r.program, &batch, &training));
    made.gradients = library.n_winograd;
    made.evaluation = winograd_evaluation(&r, n);
    rig_fini(&r);
    return made;
}

static void check_winograd(ps_winograd allowed, int channels, int side, int n,
                           winograd_passes wanted)
{
    winograd_passes made = winograd_of(allowed, channels, side, n);
    assert_int_equal(made.forward, wanted.forward);
    assert_int_equal(made.gradients, wanted.gradients);
    assert_int_equal(made.evaluation, wanted.evaluation);
}

static bool has_winograd(void)
{
    const bool has =
        PS_DNNL_HAS_WINOGRAD && dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core;
    if (!has)
        print_message("skipped: Winograd's algorithm is in oneDNN 2, for AVX-512\n");
    return has;
}

/* Winograd's algorithm is used on every processor that has it, also for small batches,
 * except where its transforms cost more than it saves. The forward pass uses it only on
 * request: its rounding errors can change what a relu does. */
TEST(test_winograd_is_used_where_it_pays)
{
    const winograd_passes none = {0}, gradients = {.gradients = 2}, every = {1, 2, 1};
    check_winograd(PS_WINOGRAD_OFF, 64, 28, 4, none);
    if (!has_winograd()) return;
    check_winograd(PS_WINOGRAD_GRADIENTS, 64, 28, 4, gradients);
    check_winograd(PS_WINOGRAD_GRADIENTS, 128, 16, 16, gradients);
    check_winograd(PS_WINOGRAD_GRADIENTS, 16, 28, 4, none);
    check_winograd(PS_WINOGRAD_GRADIENTS, 64, 6, 1, none);
    check_winograd(PS_WINOGRAD_ALL, 64, 28, 4, every);
    check_winograd(PS_WINOGRAD_ALL, 128, 16, 16, every);
    check_winograd(PS_WINOGRAD_ALL, 16, 28, 4, none);
    check_winograd(PS_WINOGRAD_ALL, 64, 6, 1, none);
}

enum { SUMS_N = 4, SUMS_CHANNELS = 64, SUMS_SIDE = 27 }; // a side that fills no tiles
enum { SUMS = SUMS_N * SUMS_CHANNELS * SUMS_SIDE * SUMS_SIDE };

/* The outputs of a convolution, with a bias and its relu. */
static float *sums_of(ps_winograd allowed)
{
    rig r;
    rig_device device = cpu;
    device.winograd = allowed;
    float *sums = malloc(sizeof *sums * SUMS);
    assert_non_null(sums);
    rig_init(&r, &device, "[1, 27, 27]", "cross_entropy",
             "{conv2d: {name: a, out: 64, kernel: 1}}, {conv2d: {name: b, out: 64, "
             "kernel: 3, padding: 1}}, relu, flatten",
             SUMS_N);
    assert_int_equal(winograd_forward(&r, r.program, SUMS_N, &training),
                     allowed == PS_WINOGRAD_ALL);
    assert_ok(ps_program_outputs(r.program, sums, SUMS));
    rig_fini(&r);
    return sums;
}

/* Within 1e-5 of the largest output. */
TEST(test_winograd_makes_the_same_outputs)
{
    if (!has_winograd()) return;
    float *direct = sums_of(PS_WINOGRAD_GRADIENTS), *winograd = sums_of(PS_WINOGRAD_ALL);
    double largest = 0, worst = 0;
    for (int i = 0; i < SUMS; i++) {
        largest = fmax(largest, fabs((double)direct[i]));
        worst = fmax(worst, fabs((double)winograd[i] - (double)direct[i]));
    }
    print_message("at most %.2g of the largest output\n", worst / largest);
    assert_true(largest > 0 && worst < 1e-5 * largest);
    free(direct);
    free(winograd);
}

/* Returns what the function wrote to stderr. */
static void captured_step(const char *input, const char *layers, char *out, size_t bytes)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    run_step(input, layers, 3);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    out[fread(out, 1, bytes - 1, file)] = 0;
    fclose(file);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* There is one warning for the layer, not one for each batch size. */
TEST(test_a_layer_without_fast_code_is_named_once)
{
    char said[4096];
    const char *two = "{conv2d: {name: body, out: 8, kernel: 3}}, relu, {conv2d: "
                      "{name: tail, out: 8, kernel: 1}}";
    library.says_reference = true;
    captured_step("[3, 8, 8]", two, said, sizeof said);
    library.says_reference = false;
    assert_int_equal(count(said, "slow layer"), 2);
    assert_int_equal(count(said, "layer=body "), 1);
    assert_int_equal(count(said, "layer=tail "), 1);
    captured_step("[3, 8, 8]", two, said, sizeof said);
    assert_int_equal(count(said, "slow layer"), 0);
}

int main(void)
{
    ps_log_init("test", PS_LOG_WARN);
    return check_run(NULL, NULL);
}
