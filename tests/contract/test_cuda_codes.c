/* Gradients that the CUDA device encodes, on the host in a GPU's place, and, as
 * gpu_codes, on a GPU, against the host's codecs: every byte of every chunk's payload,
 * however the arena is cut. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cuda_codes.h"
#include "model_spec.h"
#include "rng.h"

/* Tensors of 1 to 39,600 elements; few are multiples of a block. */
static const char *const model[] = {
    "model.input=[99]",
    "model.layers=[{linear: {name: a, out: 400}}, {linear: {name: b, out: 41}}, "
    "{linear: {name: c, out: 100}}, {linear: {name: d, out: 33}}, {linear: {name: e, "
    "out: 1}}, {linear: {name: f, out: 257}}, {linear: {name: g, out: 16}}]",
    "model.loss=mse",
};

typedef struct rig {
    ps_config cfg;
    ps_model_spec spec;
    ps_gpu *gpu;
    ps_gpu_event *done;
    float *host, *there; // gradients, on the host and on the GPU
    ps_coded_arena coded;
    const ps_cuda_codes *codes;
    ps_device_codes *made;
} rig;

static void rig_init(rig *r, const char *codec, bool overflow)
{
    char words[2][64];
    const char *all[5] = {model[0], model[1], model[2], words[0], words[1]};
    const ps_gpu_options gpu = {.index = -1, .local_rank = -1, .format = PS_FORMAT_FP32};
    ps_chunk_codec how;
    *r = (rig){0};
    snprintf(words[0], sizeof words[0], "exchange.codec=%s", codec);
    snprintf(words[1], sizeof words[1], "exchange.codec_min=1000");
    assert_ok(ps_config_load(&r->cfg, NULL, all, 5));
    assert_ok(ps_model_spec_init(&r->spec, &r->cfg));
    const size_t bytes = r->spec.table.arena_count * sizeof(float);
    assert_ok(ps_gpu_open(&gpu, &r->gpu));
    assert_ok(ps_gpu_enter(r->gpu));
    assert_ok(ps_gpu_event_create(r->gpu, &r->done));
    assert_ok(ps_gpu_take(r->gpu, bytes, "gradients", &r->there));
    assert_ok(ps_gpu_take_pinned(r->gpu, bytes, "gradients", &r->host));
    ps_chunk_codec_init(&how, &r->cfg, &r->spec.table);
    ps_chunk_codec_end(&how, 10);
    how.overflow = overflow;
    assert_true(ps_coded_arena_takes(&how));
    assert_ok(ps_coded_arena_init(&r->coded, &how));
    assert_ok(ps_cuda_codes_create(r->gpu, &r->coded, r->host, &r->codes, &r->made));
}

static void rig_fini(rig *r)
{
    r->made->destroy(&r->made);
    assert_null(r->codes);
    ps_coded_arena_fini(&r->coded);
    ps_gpu_give(r->gpu, r->there);
    ps_gpu_give_pinned(r->gpu, r->host);
    ps_gpu_event_destroy(&r->done);
    ps_gpu_close(&r->gpu);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
}

/* Any bits: with NaN, infinities, denormals. Or numbers of one size, with zeros. */
static void draw_values(rig *r, ps_mt19937 *g, int kind)
{
    const float scale[] = {1.0f, 1e-3f, 1e-30f, 1e-41f, 1e38f, 3e4f};
    for (uint64_t i = 0; i < r->spec.table.arena_count; i++) {
        const uint32_t bits = ps_mt19937_u32(g);
        const float v = (float)(int32_t)bits * 0x1p-31f * scale[kind % 6];
        r->host[i] = kind < 6 ? bits % 5 ? v : 0.0f : ps_float_of_bits(bits);
        // else every block of any bits has a NaN
        if (kind == 6 && bits % 300) r->host[i] = v;
    }
}

static void fetch(rig *r, uint64_t key)
{
    const int n = r->spec.table.n_tensors, cut = n / 2; // as two groups of layers
    r->coded.key = key;
    assert_ok(ps_gpu_copy_in(r->gpu, PS_GPU_DOWNLOAD, r->there, r->host,
                             r->spec.table.arena_count * sizeof(float), "test"));
    assert_ok(ps_cuda_codes_fetch(r->codes, r->gpu, r->there, cut, n - cut, "test"));
    assert_ok(ps_cuda_codes_fetch(r->codes, r->gpu, r->there, 0, cut, "test"));
    assert_ok(ps_gpu_record(r->gpu, r->done, PS_GPU_DOWNLOAD));
    assert_ok(ps_gpu_sync(r->gpu, r->done, "test"));
}

static void check_chunks(const rig *r, uint64_t chunk_bytes, int *coded)
{
    const ps_chunk_codec *how = &r->coded.codec;
    ps_plan plan;
    assert_ok(
        ps_plan_init(&plan, &r->spec.table, (ps_chunk_size){.bytes = chunk_bytes}, 1));
    for (uint32_t c = 0; c < plan.n_chunks; c++) {
        const ps_chunk *chunk = &plan.chunks[c];
        const ps_codec codec = ps_chunk_codec_of(how, chunk, PS_CODED_GRADIENT, 0);
        if (codec == PS_CODEC_NONE) continue;
        const uint64_t bytes = ps_chunk_codec_bytes(how, chunk, codec);
        uint8_t *wanted = malloc(bytes);
        ps_chunk_codec_encode(how, chunk, codec, r->host + chunk->offset, NULL,
                              r->coded.key, wanted);
        assert_memory_equal(ps_coded_arena_payload(&r->coded, chunk), wanted, bytes);
        free(wanted);
        ++*coded;
    }
    ps_plan_fini(&plan);
}

/* Those that travel as float32 come to the host's arena, the others do not. */
static void check_unpacked(rig *r)
{
    const ps_tensor_table *table = &r->spec.table;
    float *arena = calloc(table->arena_count, sizeof *arena);
    ps_cuda_codes_unpack(r->codes, arena, 0, table->n_tensors);
    for (int t = 0; t < table->n_tensors; t++) {
        const ps_tensor *tensor = &table->tensors[t];
        const bool small = tensor->count < 250;
        for (uint64_t i = 0; i < tensor->count; i++)
            assert_int_equal(ps_float_bits(arena[tensor->offset + i]),
                             small ? ps_float_bits(r->host[tensor->offset + i]) : 0);
    }
    free(arena);
}

TEST(test_payloads_are_the_hosts)
{
    static const char *const codecs[] = {"int8", "fp16", "bf16"};
    ps_mt19937 g;
    ps_mt19937_seed(&g, 52);
    for (int c = 0; c < 3; c++)
        for (int overflow = 0; overflow < 2; overflow++) {
            rig r;
            int coded = 0;
            rig_init(&r, codecs[c], overflow);
            for (int kind = 0; kind < 8; kind++) {
                draw_values(&r, &g, kind);
                fetch(&r, ps_codec_draw_key((uint32_t)kind, 1000u + (uint64_t)c));
                for (uint64_t bytes = 16384; bytes <= 1 << 20; bytes *= 4)
                    check_chunks(&r, bytes, &coded);
                check_unpacked(&r);
            }
            assert_true(coded > 100);
            rig_fini(&r);
        }
}

TEST(test_what_keeps_something_back_stays_on_the_host)
{
    static const char *const codecs[] = {"none", "int4", "onebit", "topk"};
    for (int c = 0; c < 4; c++) {
        char word[64];
        const char *all[4] = {model[0], model[1], model[2], word};
        ps_config cfg;
        ps_model_spec spec;
        ps_chunk_codec how;
        snprintf(word, sizeof word, "exchange.codec=%s", codecs[c]);
        assert_ok(ps_config_load(&cfg, NULL, all, 4));
        assert_ok(ps_model_spec_init(&spec, &cfg));
        ps_chunk_codec_init(&how, &cfg, &spec.table);
        assert_false(ps_coded_arena_takes(&how));
        ps_model_spec_fini(&spec);
        ps_config_fini(&cfg);
    }
}
