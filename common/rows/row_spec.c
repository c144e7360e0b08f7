#include "row_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "row_partition.h"

const ps_word ps_row_optimizer_words[] = {{"sgd", PS_ROW_SGD},
                                          {"adagrad", PS_ROW_ADAGRAD},
                                          {"sparse_adam", PS_ROW_SPARSE_ADAM},
                                          {"rowwise_adagrad", PS_ROW_ROWWISE_ADAGRAD},
                                          {NULL, 0}};
const ps_word ps_row_init_words[] = {{"uniform", PS_ROW_UNIFORM},
                                     {"normal", PS_ROW_NORMAL},
                                     {"constant", PS_ROW_CONSTANT},
                                     {NULL, 0}};
const ps_word ps_row_full_words[] = {
    {"end", PS_ROW_FULL_END}, {"evict", PS_ROW_FULL_EVICT}, {NULL, 0}};
const ps_word ps_row_codec_words[] = {
    {"none", PS_CODEC_NONE}, {"fp16", PS_CODEC_FP16}, {"int8", PS_CODEC_INT8}, {NULL, 0}};

/* A spec as it travels. */
typedef struct spec_map {
    ps_row_spec spec;
    ps_map_bytes name;
} spec_map;

#define SPEC_FIELD(member, kind, most)                                                   \
    {                                                                                    \
#member, offsetof(spec_map, spec.member), PS_MAP_##kind, most, NULL              \
    }

static const ps_map_field spec_fields[] = {
    PS_MAP_FIELD(spec_map, name, BYTES, PS_ROW_NAME_BYTES - 1),
    SPEC_FIELD(number, U32, PS_ROW_TABLES_MAX - 1),
    SPEC_FIELD(dim, U32, PS_ROW_DIM_MAX),
    SPEC_FIELD(optimizer, U32, PS_ROW_ROWWISE_ADAGRAD),
    SPEC_FIELD(lr, DOUBLE, 0),
    SPEC_FIELD(eps, DOUBLE, 0),
    SPEC_FIELD(beta1, DOUBLE, 0),
    SPEC_FIELD(beta2, DOUBLE, 0),
    SPEC_FIELD(lr_decay, DOUBLE, 0),
    SPEC_FIELD(initial_accumulator, DOUBLE, 0),
    SPEC_FIELD(init, U32, PS_ROW_CONSTANT),
    SPEC_FIELD(init_scale, DOUBLE, 0),
    SPEC_FIELD(seed, U64, UINT64_MAX),
    SPEC_FIELD(max_bytes, U64, UINT64_MAX),
    SPEC_FIELD(full, U32, PS_ROW_FULL_EVICT),
    SPEC_FIELD(admit, U32, PS_ROW_ADMIT_MAX),
    SPEC_FIELD(expire, U32, UINT32_MAX),
    SPEC_FIELD(codec, U32, PS_CODEC_COUNT),
};
static const ps_map spec_map_fields = PS_MAP_OF(spec_fields, spec_map);
enum { N_FIELDS = sizeof spec_fields / sizeof *spec_fields };

ps_row_spec ps_row_spec_default(ps_row_optimizer optimizer)
{
    const bool slow = optimizer == PS_ROW_SGD || optimizer == PS_ROW_SPARSE_ADAM;
    return (ps_row_spec){.optimizer = optimizer,
                         .lr = slow ? 1e-3 : 1e-2,
                         .eps = optimizer == PS_ROW_ADAGRAD ? 1e-10 : 1e-8,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .init_scale = 0.01};
}

static ps_err spec_check_numbers(const ps_row_spec *spec)
{
    const struct {
        const char *name;
        double value, least, below;
    } numbers[] = {
        {"lr", spec->lr, 0, INFINITY},
        {"eps", spec->eps, 0, INFINITY},
        {"beta1", spec->beta1, 0, 1},
        {"beta2", spec->beta2, 0, 1},
        {"lr_decay", spec->lr_decay, 0, INFINITY},
        {"initial_accumulator", spec->initial_accumulator, 0, INFINITY},
        {"init_scale", spec->init_scale, -INFINITY, INFINITY},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const double x = numbers[i].value;
        if (!isfinite(x) || fabs(x) > 3e38 || x < numbers[i].least ||
            x >= numbers[i].below)
            return ps_err_set(PS_ERR_ARG, "table '%s': %s %g: give a finite number%s",
                              spec->name, numbers[i].name, x,
                              isfinite(numbers[i].below)   ? " from 0 up to 1, without 1"
                              : isfinite(numbers[i].least) ? ", 0 or more"
                                                           : "");
    }
    return PS_OK;
}

ps_err ps_row_spec_check(const ps_row_spec *spec)
{
    if (spec->name[0] == '\0' || !memchr(spec->name, '\0', sizeof spec->name))
        return ps_err_set(PS_ERR_ARG, "table %u: give it a name of 1 to %d bytes",
                          spec->number, PS_ROW_NAME_BYTES - 1);
    if (spec->number >= PS_ROW_TABLES_MAX)
        return ps_err_set(PS_ERR_ARG, "table '%s': a job has at most %d tables",
                          spec->name, PS_ROW_TABLES_MAX);
    if (spec->dim == 0 || spec->dim > PS_ROW_DIM_MAX)
        return ps_err_set(PS_ERR_ARG, "table '%s': dim %u: give 1 to %d", spec->name,
                          spec->dim, PS_ROW_DIM_MAX);
    if (spec->optimizer > PS_ROW_ROWWISE_ADAGRAD || spec->init > PS_ROW_CONSTANT ||
        spec->full > PS_ROW_FULL_EVICT)
        return ps_err_set(PS_ERR_ARG, "table '%s': optimizer, init or full is unknown",
                          spec->name);
    if (ps_word_name(ps_row_codec_words, (int)spec->codec)[0] == '?')
        return ps_err_set(PS_ERR_ARG, "table '%s': rows have no codec %d", spec->name,
                          (int)spec->codec);
    if (spec->admit > PS_ROW_ADMIT_MAX)
        return ps_err_set(PS_ERR_ARG, "table '%s': admit %u: give at most %d", spec->name,
                          spec->admit, PS_ROW_ADMIT_MAX);
    PS_TRY(spec_check_numbers(spec));
    if (spec->full == PS_ROW_FULL_EVICT && spec->max_bytes == 0)
        return ps_err_set(PS_ERR_ARG,
                          "table '%s' evicts rows, and has no max_bytes that says when: "
                          "give both, or none",
                          spec->name);
    const uint64_t least = ps_row_spec_row_bytes(spec) * PS_ROW_PARTITIONS;
    if (spec->max_bytes > 0 && spec->max_bytes < least)
        return ps_err_set(PS_ERR_ARG,
                          "table '%s': max_bytes %llu: give 0, or at least "
                          "%llu, which is a row for each of its %d partitions",
                          spec->name, (unsigned long long)spec->max_bytes,
                          (unsigned long long)least, PS_ROW_PARTITIONS);
    return PS_OK;
}

static const void *spec_at(const ps_row_spec *spec, const ps_map_field *field)
{
    return (const char *)spec + (field->offset - offsetof(spec_map, spec));
}

/* As short as its value allows; others have other texts. */
static void spec_number_text(double number, char out[PS_ROW_NAME_BYTES])
{
    snprintf(out, PS_ROW_NAME_BYTES, "%.15g", number);
    if (strtod(out, NULL) != number) snprintf(out, PS_ROW_NAME_BYTES, "%.17g", number);
}

/* A field of two specs as text; the first one is the name. Returns whether they differ.
 */
static bool spec_field_differs(const ps_row_spec *a, const ps_row_spec *b, int i,
                               char text[2][PS_ROW_NAME_BYTES])
{
    const ps_row_spec *specs[] = {a, b};
    for (int k = 0; k < 2; k++) {
        const ps_map_field *field = &spec_fields[i];
        const void *at = i > 0 ? spec_at(specs[k], field) : specs[k]->name;
        double number;
        uint64_t u64;
        uint32_t u32;
        switch (field->kind) {
        case PS_MAP_DOUBLE:
            memcpy(&number, at, sizeof number);
            spec_number_text(number, text[k]);
            break;
        case PS_MAP_U64:
            memcpy(&u64, at, sizeof u64);
            snprintf(text[k], PS_ROW_NAME_BYTES, "%llu", (unsigned long long)u64);
            break;
        case PS_MAP_U32:
            memcpy(&u32, at, sizeof u32);
            snprintf(text[k], PS_ROW_NAME_BYTES, "%u", u32);
            break;
        default:
            snprintf(text[k], PS_ROW_NAME_BYTES, "%s", specs[k]->name);
        }
    }
    return strcmp(text[0], text[1]) != 0;
}

/* The words of a setting, or NULL where it is no word. */
static const ps_word *spec_words(const char *name)
{
    if (strcmp(name, "optimizer") == 0) return ps_row_optimizer_words;
    if (strcmp(name, "init") == 0) return ps_row_init_words;
    if (strcmp(name, "codec") == 0) return ps_row_codec_words;
    return strcmp(name, "full") == 0 ? ps_row_full_words : NULL;
}

const char *ps_row_spec_difference(const ps_row_spec *a, const ps_row_spec *b, char *out,
                                   size_t bytes)
{
    char text[2][PS_ROW_NAME_BYTES];
    snprintf(out, bytes, "%s", "");
    for (int i = 0; i < N_FIELDS; i++) {
        if (!spec_field_differs(a, b, i, text)) continue;
        const ps_word *words = spec_words(spec_fields[i].name);
        for (int k = 0; words && k < 2; k++) {
            uint32_t value;
            memcpy(&value, spec_at(k ? b : a, &spec_fields[i]), sizeof value);
            snprintf(text[k], sizeof text[k], "%s", ps_word_name(words, (int)value));
        }
        snprintf(out, bytes, "%s: %s and %s", spec_fields[i].name, text[0], text[1]);
        return out;
    }
    return out;
}

uint64_t ps_row_spec_hash(const ps_row_spec *spec)
{
    ps_hash hash;
    char text[2][PS_ROW_NAME_BYTES];
    ps_hash_init(&hash);
    for (int i = 0; i < N_FIELDS; i++) {
        spec_field_differs(spec, spec, i, text);
        ps_hash_string(&hash, text[0]);
    }
    return ps_hash_value(&hash);
}

void ps_row_spec_write(ps_mp_writer *w, const ps_row_spec *spec)
{
    const spec_map from = {.spec = *spec, .name = {spec->name, strlen(spec->name)}};
    ps_map_write(w, &spec_map_fields, &from);
}

ps_err ps_row_spec_read(const void *value, size_t bytes, const char *what,
                        ps_row_spec *spec)
{
    spec_map to = {0};
    PS_TRY(ps_map_read(value, bytes, &spec_map_fields, what, &to));
    memcpy(to.spec.name, to.name.at, to.name.n); // zeros follow
    *spec = to.spec;
    const ps_err err = memchr(to.spec.name, '\0', to.name.n)
                           ? ps_err_set(PS_ERR_PROTOCOL, "a name with a zero byte")
                           : ps_row_spec_check(spec);
    return err == PS_OK ? PS_OK : ps_err_prefix(err, "%s", what);
}

uint32_t ps_row_spec_width(const ps_row_spec *spec)
{
    switch (spec->optimizer) {
    case PS_ROW_ADAGRAD:
        return 2 * spec->dim;
    case PS_ROW_SPARSE_ADAM:
        return 3 * spec->dim;
    case PS_ROW_ROWWISE_ADAGRAD:
        return spec->dim + 1;
    default:
        return spec->dim;
    }
}

uint64_t ps_row_spec_row_bytes(const ps_row_spec *spec)
{
    return (uint64_t)ps_row_spec_width(spec) * sizeof(float) + PS_ROW_INDEX_BYTES;
}
