/* Which of oneDNN's implementations the convolutions of the CPU device run. The linker
 * puts wrap_ functions around two of the library's calls (tests/CMakeLists.txt): one
 * counts what runs, the other may say that everything is reference code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <oneapi/dnnl/dnnl.h>

#include "device_rig.h"
#include "log.h"

static struct {
    bool says_reference;
    int n_run, n_reference, n_winograd;
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

dnnl_status_t __real_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args);
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args);
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args)
{
    const_dnnl_primitive_desc_t pd = NULL;
    const char *name = "";
    dnnl_primitive_get_primitive_desc(primitive, &pd);
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    library.n_run++;
    library.n_reference += strncmp(name, "ref", 3) == 0;
    library.n_winograd += strstr(name, "wino") != NULL;
    return __real_dnnl_primitive_execute(primitive, stream, n, args);
}

static const ps_pass training = {.training = true, .grad_scale = 1.0f};
static const rig_device cpu = {.kind = PS_DEVICE_CPU, .rounding = &rig_float32};

static void run_step(const char *input, const char *layers, int n)
{
    rig r;
    char model[512];
    snprintf(model, sizeof model,
             "%s, relu, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}",
             layers);
    rig_init(&r, &cpu, input, "cross_entropy", model, n);
    for (int size = n; size > 0; size--) {
        ps_batch batch = rig_batch(&r, size);
        assert_int_equal(ps_program_forward(r.program, &batch, &training, NULL), PS_OK);
        assert_int_equal(ps_program_backward(r.program, &batch, &training), PS_OK);
    }
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

/* in, out, kernel, stride, side: each once took 100 to 1,000 times what it takes now. */
static const int shapes[][5] = {
    {4, 16, 3, 1, 8},   {5, 16, 3, 1, 8},  {6, 16, 5, 1, 14},  {8, 8, 3, 1, 8},
    {8, 12, 3, 1, 8},   {8, 16, 3, 1, 8},  {10, 20, 5, 1, 12}, {10, 32, 3, 1, 8},
    {12, 12, 3, 1, 8},  {12, 16, 3, 1, 8}, {15, 31, 3, 1, 8},  {17, 33, 3, 1, 8},
    {1, 16, 20, 1, 28}, {1, 8, 15, 3, 32}, {3, 32, 16, 16, 32}};

static void test_no_reference_code_runs(void **state)
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

/* Of the gradients of data and of weights, how many Winograd's algorithm makes in a pass
 * of `channels` twice, with n samples. */
static int winograd_gradients(const rig_device *device, int channels, int side, int n)
{
    rig r;
    char model[256];
    snprintf(
        model, sizeof model,
        "{conv2d: {name: a, out: %d, kernel: 1}}, {conv2d: {name: b, out: %d, kernel: "
        "3, padding: 1}}, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}",
        channels, channels);
    char input[64];
    snprintf(input, sizeof input, "[1, %d, %d]", side, side);
    rig_init(&r, device, input, "cross_entropy", model, n);
    ps_batch batch = rig_batch(&r, n);
    library.n_winograd = 0;
    assert_int_equal(ps_program_forward(r.program, &batch, &training, NULL), PS_OK);
    assert_int_equal(library.n_winograd, 0); // its roundings would decide relus otherwise
    assert_int_equal(ps_program_backward(r.program, &batch, &training), PS_OK);
    rig_fini(&r);
    return library.n_winograd;
}

/* On every processor that has it, of small batches too; not where its transforms cost
 * more than it saves. */
static void test_winograd_is_used_where_it_pays(void **state)
{
    rig_device without = cpu;
    without.no_winograd = true;
    assert_int_equal(winograd_gradients(&without, 64, 28, 4), 0);
    if (dnnl_get_effective_cpu_isa() < dnnl_cpu_isa_avx512_core) {
        print_message(
            "skipped: the library has Winograd's algorithm for AVX-512 alone\n");
        return;
    }
    assert_int_equal(winograd_gradients(&cpu, 64, 28, 4), 2);
    assert_int_equal(winograd_gradients(&cpu, 128, 16, 16), 2);
    assert_int_equal(winograd_gradients(&cpu, 16, 28, 4), 0);
    assert_int_equal(winograd_gradients(&cpu, 64, 6, 1), 0);
}

/* What the function wrote to stderr. */
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

/* One warning, of the layer and not of its sizes of a batch. */
static void test_a_layer_without_fast_code_is_named_once(void **state)
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_reference_code_runs),
        cmocka_unit_test(test_winograd_is_used_where_it_pays),
        cmocka_unit_test(test_a_layer_without_fast_code_is_named_once),
    };
    ps_log_init("test", PS_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
