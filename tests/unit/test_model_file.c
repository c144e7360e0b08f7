/* Files of first weights: some fit only in part, have 16-bit floats, or come from other
 * programs. */
#include <unistd.h>

#include "../support/half.h"
#include "check.h"
#include "model_file.h"

enum { ROWS = 2, COLUMNS = 3, N = ROWS * COLUMNS };

typedef struct fixture {
    char path[64];
    ps_tensor_table table; // fc.weight (2, 3), fc.bias (2)
    float params[64];
} fixture;

static ps_dims dims_of(int n, int64_t a, int64_t b)
{
    return (ps_dims){.n = n, .d = {a, b}};
}

static int make(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    int index;
    snprintf(f->path, sizeof f->path, "/tmp/pstrain-test-XXXXXX");
    const int fd = mkstemp(f->path);
    *state = f;
    for (int i = 0; i < 64; i++)
        f->params[i] = -1;
    return fd < 0 || close(fd) != 0 ||
           ps_tensor_table_add(&f->table, "fc.weight", dims_of(2, ROWS, COLUMNS),
                               PS_TENSOR_WEIGHT, COLUMNS, &index) != PS_OK ||
           ps_tensor_table_add(&f->table, "fc.bias", dims_of(1, ROWS, 0), PS_TENSOR_BIAS,
                               COLUMNS, &index) != PS_OK;
}

static int tear(void **state)
{
    fixture *f = *state;
    unlink(f->path);
    ps_tensor_table_fini(&f->table);
    free(f);
    return 0;
}
#define RIG_TEST(name) TEST_WITH(name, make, tear)

static ps_st_tensor entry(char *name, const char *dtype, ps_dims dims, const void *data,
                          uint64_t bytes)
{
    ps_st_tensor t = {.name = name, .dims = dims, .data = data, .bytes = bytes};
    snprintf(t.dtype, sizeof t.dtype, "%s", dtype);
    return t;
}

static ps_err load(fixture *f, bool strict)
{
    return ps_model_file_load(f->path, &f->table, strict, f->params, NULL);
}

static void expect_refused(fixture *f, bool strict, const char *message)
{
    assert_error(load(f, strict), PS_ERR_FORMAT, message);
}

RIG_TEST(sixteen_bits_become_float32)
{
    fixture *f = *state;
    const uint16_t fp16[N] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8000, 0x3555};
    const uint16_t bf16[ROWS] = {0x3F80, 0xC2F7};
    const ps_st_tensor tensors[] = {
        entry("fc.weight", "F16", dims_of(2, ROWS, COLUMNS), fp16, sizeof fp16),
        entry("fc.bias", "BF16", dims_of(1, ROWS, 0), bf16, sizeof bf16)};
    assert_ok(ps_st_save(f->path, tensors, 2, NULL, 0));
    assert_ok(load(f, true));
    for (int i = 0; i < N; i++)
        assert_true(f->params[f->table.tensors[0].offset + (uint64_t)i] ==
                    (float)half_value(fp16[i]));
    const float *bias = f->params + f->table.tensors[1].offset;
    assert_true(bias[0] == 1.0f && bias[1] == -123.5f);
}

/* As model.double() and astype("int32") of NumPy leave them. */
RIG_TEST(other_dtypes_are_converted)
{
    fixture *f = *state;
    const double weight[N] = {0.1, -1e-30, 16777217, 1.0 / 3, 0, -2}, bias[ROWS] = {1, 2};
    const int8_t small = -2;
    const uint16_t medium = 65535;
    const int32_t wide = 70000;
    const void *const counters[] = {&small, &medium, &wide};
    const char *const dtypes[] = {"I8", "U16", "I32"};
    const int64_t expected[] = {-2, 65535, 70000};
    const uint64_t bytes[] = {1, 2, 4};
    int index;
    assert_ok(ps_tensor_table_add_buffer(&f->table, "n", (ps_dims){0}, PS_TENSOR_COUNTER,
                                         &index));
    for (int k = 0; k < 3; k++) {
        int64_t counted = 0;
        const ps_st_tensor tensors[] = {
            entry("fc.weight", "F64", dims_of(2, ROWS, COLUMNS), weight, sizeof weight),
            entry("fc.bias", "F64", dims_of(1, ROWS, 0), bias, sizeof bias),
            entry("n", dtypes[k], (ps_dims){0}, counters[k], bytes[k])};
        assert_ok(ps_st_save(f->path, tensors, 3, NULL, 0));
        assert_ok(ps_model_file_load(f->path, &f->table, true, f->params, &counted));
        assert_int_equal(counted, expected[k]);
        for (int i = 0; i < N; i++)
            assert_true(f->params[f->table.tensors[0].offset + (uint64_t)i] ==
                        (float)weight[i]);
    }
}

RIG_TEST(infinite_ones_are_refused)
{
    fixture *f = *state;
    const uint16_t fp16[N] = {0, 0, 0, 0, 0x7C00, 0}, bias[ROWS] = {0};
    const ps_st_tensor tensors[] = {
        entry("fc.weight", "F16", dims_of(2, ROWS, COLUMNS), fp16, sizeof fp16),
        entry("fc.bias", "F16", dims_of(1, ROWS, 0), bias, sizeof bias)};
    assert_ok(ps_st_save(f->path, tensors, 2, NULL, 0));
    expect_refused(f, true, "fc.weight: element 4 is inf");
}

RIG_TEST(what_fits_is_taken_when_asked)
{
    fixture *f = *state;
    const float weight[5 * COLUMNS] = {0}, bias[ROWS] = {7, 8};
    const ps_st_tensor tensors[] = {
        entry("fc.weight", "F32", dims_of(2, 5, COLUMNS), weight, sizeof weight),
        entry("fc.bias", "F32", dims_of(1, ROWS, 0), bias, sizeof bias),
        entry("head.bias", "F32", dims_of(1, ROWS, 0), bias, sizeof bias)};
    assert_ok(ps_st_save(f->path, tensors, 3, NULL, 0));
    expect_refused(f, true, "fc.weight: shape is (5, 3), the model's is (2, 3)");
    assert_ok(load(f, false));
    assert_true(f->params[f->table.tensors[0].offset] == -1); // as it was
    assert_true(f->params[f->table.tensors[1].offset + 1] == 8);
}

RIG_TEST(nothing_that_fits_is_refused)
{
    fixture *f = *state;
    const float bias[ROWS] = {7, 8};
    const ps_st_tensor other =
        entry("head.bias", "F32", dims_of(1, ROWS, 0), bias, sizeof bias);
    assert_ok(ps_st_save(f->path, &other, 1, NULL, 0));
    expect_refused(f, false, "no tensor of the file has the name and shape");
}

RIG_TEST(the_names_of_a_wrapped_model_are_explained)
{
    fixture *f = *state;
    const float bias[ROWS] = {7, 8};
    char *const names[] = {"module.fc.bias", "_orig_mod.fc.bias",
                           "_orig_mod.module.fc.bias"};
    for (int i = 0; i < 3; i++) {
        const ps_st_tensor other =
            entry(names[i], "F32", dims_of(1, ROWS, 0), bias, sizeof bias);
        const char *hint = i == 0 ? "save model.module.state_dict()"
                                  : "as torch.compile's do: save "
                                    "model._orig_mod.state_dict()";
        assert_ok(ps_st_save(f->path, &other, 1, NULL, 0));
        expect_refused(f, true, hint);
        expect_refused(f, false, hint);
    }
}

RIG_TEST(a_file_of_torch_save_is_explained)
{
    static const char *const begins[] = {"PK\003\004 and more of a zip",
                                         "\200\002 and more of a pickle"};
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(f->path, "wb");
        assert_true(file && fputs(begins[i], file) >= 0 && fclose(file) == 0);
        expect_refused(f, true, "a file of torch.save, not of safetensors");
    }
}

/* The first bytes of a pickle are also those of 640 lengths of a header. */
RIG_TEST(headers_of_every_length_are_read)
{
    fixture *f = *state;
    char text[1024];
    memset(text, 'x', sizeof text);
    for (int n = 300; n < 600; n += 8) {
        const float weight[N] = {1}, bias[ROWS] = {2};
        const ps_st_tensor tensors[] = {
            entry("fc.weight", "F32", dims_of(2, ROWS, COLUMNS), weight, sizeof weight),
            entry("fc.bias", "F32", dims_of(1, ROWS, 0), bias, sizeof bias)};
        text[n] = '\0';
        const char *metadata[] = {"note", text};
        assert_ok(ps_st_save(f->path, tensors, 2, metadata, 1));
        assert_ok(load(f, true));
        text[n] = 'x';
    }
}
