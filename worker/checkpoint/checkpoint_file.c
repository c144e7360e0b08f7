#include "checkpoint_file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "model_file.h"
#include "new_file.h"
#include "regular_file.h"
#include "row_manifest.h"
#include "state_tensors.h"
#include "value_json.h"

static const char MODEL[] = "model.safetensors", OPTIMIZER[] = "optimizer.safetensors",
                  TOLD[] = "told.safetensors", MANIFEST[] = "manifest.json";
static const char FORMAT[] = "pstrain checkpoint 1";

/* ---- files ---- */

static const char *checkpoint_path_of(const char *folder, const char *name,
                                      char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s", folder, name);
    return out;
}

static void feedback_name(int rank, char out[48])
{
    snprintf(out, 48, "feedback-%d.safetensors", rank);
}

static void local_name(int rank, char out[48])
{
    snprintf(out, 48, "local-%d.safetensors", rank);
}

/* Notes a file that is written in the manifest. */
static ps_err note_file(const char *folder, const char *name, json_t *files)
{
    char path[PATH_MAX];
    uint64_t bytes;
    uint32_t crc;
    PS_TRY(ps_regular_file_sum(checkpoint_path_of(folder, name, path), &bytes, &crc));
    json_t *entry =
        json_pack("{s:I, s:I}", "bytes", (json_int_t)bytes, "crc32", (json_int_t)crc);
    if (json_object_set_new(files, name, entry) == 0) return PS_OK;
    return ps_err_set(PS_ERR_NOMEM, "no memory for a manifest");
}

/* ---- writing ---- */

/* What is being written. */
typedef struct writing {
    const char *folder;
    const ps_snapshot_shape *shape;
    const ps_snapshot *snapshot;
    json_t *files;
} writing;

static ps_err checkpoint_write_tensors(const writing *w, const char *name,
                                       const ps_state_tensors *s)
{
    char path[PATH_MAX];
    PS_TRY(ps_st_save(checkpoint_path_of(w->folder, name, path), s->list, s->n, NULL, 0));
    return note_file(w->folder, name, w->files);
}

/* One array, in a file of its own. */
static ps_err checkpoint_write_array(const writing *w, const char *name, const char *what,
                                     const float *array)
{
    ps_state_tensors s = {0};
    ps_err err = ps_state_tensors_add_arena(&s, w->shape->table, what, array);
    if (err == PS_OK) err = checkpoint_write_tensors(w, name, &s);
    ps_state_tensors_fini(&s);
    return err;
}

static ps_err write_model(const writing *w)
{
    static const char *const metadata[] = {"format", "pt", "pstrain", PS_VERSION};
    const ps_snapshot *s = w->snapshot;
    char path[PATH_MAX];
    PS_TRY(ps_model_file_save(checkpoint_path_of(w->folder, MODEL, path), w->shape->table,
                              s->exchange.weights ? s->exchange.weights : s->params,
                              s->buffers, metadata, 2));
    return note_file(w->folder, MODEL, w->files);
}

/* PyTorch's count of steps, of each tensor. */
static ps_err add_steps(ps_state_tensors *list, const ps_tensor_table *table,
                        const float *steps)
{
    for (int i = 0; i < table->n_tensors; i++) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s.step", table->tensors[i].name);
        PS_TRY(ps_state_tensors_add(list, name, (ps_dims){0}, steps));
    }
    return PS_OK;
}

static ps_err list_optimizer(const writing *w, const float *steps, ps_state_tensors *list)
{
    const ps_optimizer *opt = w->shape->optimizer;
    for (int i = 0; i < opt->n_states; i++)
        PS_TRY(ps_state_tensors_add_arena(list, w->shape->table,
                                          ps_optimizer_state_name(opt, i),
                                          w->snapshot->exchange.states[i]));
    return add_steps(list, w->shape->table, steps);
}

static ps_err write_optimizer(const writing *w)
{
    const ps_trainer_snapshot *t = &w->snapshot->trainer;
    const float steps = (float)(t->step - t->skipped_steps);
    ps_state_tensors list = {0};
    ps_err err = list_optimizer(w, &steps, &list);
    if (err == PS_OK) err = checkpoint_write_tensors(w, OPTIMIZER, &list);
    ps_state_tensors_fini(&list);
    return err;
}

/* Of the inner optimizer, after the weights. */
static const char *local_word(const ps_snapshot_shape *shape, int i)
{
    return i == 0 ? "weights" : ps_optimizer_state_name(&shape->inner, i - 1);
}

/* What a rank has of its own, except the end: that is in the manifest. */
static ps_err write_local(const writing *w, int rank)
{
    const ps_snapshot_shape *shape = w->shape;
    char name[48];
    ps_state_tensors list = {0};
    ps_err err = PS_OK;
    local_name(rank, name);
    for (int i = 0; i <= shape->inner.n_states && err == PS_OK; i++)
        err = ps_state_tensors_add_arena(
            &list, shape->table, local_word(shape, i),
            ps_local_memory_arena(shape->table, w->snapshot->local[rank], i));
    if (err == PS_OK) err = checkpoint_write_tensors(w, name, &list);
    ps_state_tensors_fini(&list);
    return err;
}

static ps_err write_arrays(const writing *w)
{
    PS_TRY(write_model(w));
    PS_TRY(write_optimizer(w));
    if (w->shape->told)
        PS_TRY(checkpoint_write_array(w, TOLD, "told", w->snapshot->params));
    for (int r = 0; r < w->snapshot->n_ranks && w->shape->feedback; r++) {
        char name[48];
        feedback_name(r, name);
        PS_TRY(checkpoint_write_array(w, name, "feedback", w->snapshot->feedback[r]));
    }
    for (int r = 0; r < w->snapshot->n_ranks && w->shape->local; r++)
        PS_TRY(write_local(w, r));
    return PS_OK;
}

/* ---- the manifest ---- */

/* Of the manifest without its own checksum. *out: what is summed, owned. */
static ps_err manifest_text(const json_t *manifest, char **out)
{
    *out = json_dumps(manifest, JSON_INDENT(1) | JSON_SORT_KEYS);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for a manifest");
}

static ps_err manifest_sum(const json_t *manifest, uint32_t *crc)
{
    char *text;
    PS_TRY(manifest_text(manifest, &text));
    *crc = (uint32_t)crc32(0, (const unsigned char *)text, (uInt)strlen(text));
    free(text);
    return PS_OK;
}

static json_t *rule_json(const uint8_t *rule, size_t bytes)
{
    char hex[2 * PS_STEP_RULE_STATE_BYTES + 1] = "";
    for (size_t i = 0; i < bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", rule[i]);
    return json_string(hex);
}

/* Of each fragment: the samples since its last change, this rank's or all ranks'. */
static json_t *samples_json(const ps_local_end *end, uint32_t n, bool all)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        const ps_local_part *p = &end->parts[i];
        json_array_append_new(
            list, json_integer((json_int_t)(all ? p->all_samples : p->samples)));
    }
    return list;
}

/* The fragments whose last synchronisation is not used yet. */
static json_t *awaited_json(const ps_local_end *end, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (end->parts[i].awaited)
            json_array_append_new(list, json_integer((json_int_t)i));
    return list;
}

/* Of each rank: the samples of its round so far, what it awaits, and its step rule. */
static json_t *local_json(const writing *w)
{
    json_t *list = json_array();
    const uint32_t n = w->shape->fragments;
    for (int r = 0; r < w->snapshot->n_ranks; r++) {
        ps_local_end end;
        memcpy(
            &end,
            ps_local_memory_end(w->shape->table, &w->shape->inner, w->snapshot->local[r]),
            sizeof end);
        json_array_append_new(list, json_pack("{s:o, s:o, s:o, s:o}", "samples",
                                              samples_json(&end, n, false), "all_samples",
                                              samples_json(&end, n, true), "awaited",
                                              awaited_json(&end, n), "step_rule",
                                              rule_json(end.rule, end.rule_bytes)));
    }
    return list;
}

static ps_err checkpoint_write_text(const char *path, const char *text)
{
    int fd;
    size_t n = strlen(text), done = 0;
    PS_TRY(ps_new_file_open(path, &fd));
    while (done < n) {
        ssize_t put = write(fd, text + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) break;
        done += (size_t)put;
    }
    ps_err err =
        done < n || fsync(fd) != 0 ? ps_err_errno(PS_ERR_IO, "%s: writing", path) : PS_OK;
    close(fd);
    return err;
}

/* Takes files and state. */
static ps_err write_manifest(const writing *w, const ps_config *cfg, json_t *state)
{
    const ps_exchange_state *x = &w->snapshot->exchange;
    char path[PATH_MAX], *text = NULL;
    uint32_t crc;
    json_t *m =
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:O}", "format", FORMAT, "program",
                  PS_VERSION, "config", ps_config_kept_json(cfg), "state", state,
                  "step_rule", rule_json(x->rule, x->rule_bytes), "files", w->files);
    if (!m) return ps_err_set(PS_ERR_NOMEM, "no memory for a manifest");
    if (w->shape->local) json_object_set_new(m, "local", local_json(w));
    if (w->snapshot->rows)
        json_object_set_new(m, "rows", json_loads(w->snapshot->rows, 0, NULL));
    ps_err err = manifest_sum(m, &crc);
    if (err == PS_OK) json_object_set_new(m, "crc32", json_integer(crc));
    if (err == PS_OK) err = manifest_text(m, &text);
    if (err == PS_OK)
        err = checkpoint_write_text(checkpoint_path_of(w->folder, MANIFEST, path), text);
    free(text);
    json_decref(m);
    return err;
}

ps_err ps_checkpoint_write(const char *folder, const ps_config *cfg,
                           const ps_snapshot_shape *shape, const ps_snapshot *snapshot)
{
    const writing w = {folder, shape, snapshot, json_object()};
    json_t *state = NULL;
    ps_err err = write_arrays(&w);
    if (err == PS_OK) err = ps_trainer_snapshot_to_json(&snapshot->trainer, &state);
    if (err == PS_OK) err = write_manifest(&w, cfg, state);
    json_decref(w.files);
    return err;
}

/* ---- checking ---- */

static ps_err load_manifest(const char *path, json_t **out)
{
    json_error_t error;
    FILE *file;
    PS_TRY(ps_regular_file_stream(path, "r", &file));
    *out = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (*out) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
}

static ps_err check_manifest(const char *path, json_t *m)
{
    const char *format = json_string_value(json_object_get(m, "format"));
    if (!format || strcmp(format, FORMAT) != 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: is not the manifest of a %s", path, FORMAT);
    uint32_t crc;
    const json_int_t said = json_integer_value(json_object_get(m, "crc32"));
    json_object_del(m, "crc32");
    PS_TRY(manifest_sum(m, &crc));
    if (said == crc) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: is damaged: its checksum is %08x, not %08x as it says", path,
                      crc, (unsigned)said);
}

static ps_err checkpoint_check_file(const char *folder, const char *name,
                                    const json_t *entry)
{
    char path[PATH_MAX];
    uint64_t bytes;
    uint32_t crc;
    const json_int_t size = json_integer_value(json_object_get(entry, "bytes"));
    const json_int_t sum = json_integer_value(json_object_get(entry, "crc32"));
    if (strchr(name, '/'))
        return ps_err_set(
            PS_ERR_FORMAT,
            "%s: its manifest names the file %s, which is outside the folder", folder,
            name);
    PS_TRY(ps_regular_file_sum(checkpoint_path_of(folder, name, path), &bytes, &crc));
    if (bytes != (uint64_t)size)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: has %" PRIu64 " bytes, but the manifest says %lld", path,
                          bytes, (long long)size);
    if (crc == sum) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: is damaged: its checksum is %08x, but the manifest says %08x",
                      path, crc, (unsigned)sum);
}

static ps_err checkpoint_check_size(const char *folder, const ps_row_manifest_file *f)
{
    char path[PATH_MAX];
    struct stat st;
    if (stat(checkpoint_path_of(folder, f->name, path), &st) != 0)
        return ps_err_errno(PS_ERR_IO, "%s", path);
    if ((uint64_t)st.st_size == f->bytes) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s: has %lld bytes, but the manifest says %" PRIu64,
                      path, (long long)st.st_size, f->bytes);
}

/* Those of embedding tables, which may be larger than all else. */
static ps_err checkpoint_check_rows(const char *folder, const json_t *rows)
{
    ps_row_manifest m;
    if (!rows) return PS_OK;
    char *text = json_dumps(rows, JSON_COMPACT);
    ps_err err = text ? ps_row_manifest_read(text, strlen(text), &m)
                      : ps_err_set(PS_ERR_NOMEM, "no memory for a manifest");
    free(text);
    PS_TRY(err);
    for (uint32_t i = 0; i < m.n_files && err == PS_OK; i++)
        err = checkpoint_check_size(folder, &m.files[i]);
    ps_row_manifest_fini(&m);
    return err;
}

ps_err ps_checkpoint_verify(const char *folder, json_t **manifest)
{
    char path[PATH_MAX];
    const char *name;
    const json_t *entry;
    json_t *m = NULL;
    *manifest = NULL;
    PS_TRY(load_manifest(checkpoint_path_of(folder, MANIFEST, path), &m));
    ps_err err = check_manifest(path, m);
    json_object_foreach(json_object_get(m, "files"), name, entry)
    {
        if (err == PS_OK) err = checkpoint_check_file(folder, name, entry);
    }
    if (err == PS_OK) err = checkpoint_check_rows(folder, json_object_get(m, "rows"));
    if (err == PS_OK)
        *manifest = m;
    else
        json_decref(m);
    return err;
}

/* ---- reading ---- */

static bool checkpoint_has(const json_t *manifest, const char *name)
{
    return json_object_get(json_object_get(manifest, "files"), name) != NULL;
}

static ps_err read_array(const char *folder, const char *name, const char *what,
                         const ps_tensor_table *table, float *out)
{
    char path[PATH_MAX];
    ps_st_file file;
    PS_TRY(ps_st_load(checkpoint_path_of(folder, name, path), &file));
    ps_err err = ps_state_tensors_read(path, &file, table, what, out);
    ps_st_fini(&file);
    return err;
}

static ps_err read_optimizer(const char *folder, const ps_snapshot_shape *shape,
                             ps_exchange_state *x)
{
    char path[PATH_MAX];
    ps_st_file file;
    ps_err err = PS_OK;
    PS_TRY(ps_st_load(checkpoint_path_of(folder, OPTIMIZER, path), &file));
    for (int i = 0; i < shape->optimizer->n_states && err == PS_OK; i++)
        err = ps_state_tensors_read(path, &file, shape->table,
                                    ps_optimizer_state_name(shape->optimizer, i),
                                    x->states[i]);
    ps_st_fini(&file);
    return err;
}

/* Without a codec, then or now, the workers have the weights themselves. */
static ps_err checkpoint_read_weights(const char *folder, const json_t *manifest,
                                      const ps_snapshot_shape *shape, ps_snapshot *s)
{
    char path[PATH_MAX];
    const bool told = shape->told && checkpoint_has(manifest, TOLD);
    PS_TRY(ps_model_file_load(checkpoint_path_of(folder, MODEL, path), shape->table, true,
                              s->params, s->buffers));
    if (told) {
        memcpy(s->exchange.weights, s->params, shape->table->arena_count * sizeof(float));
        return read_array(folder, TOLD, "told", shape->table, s->params);
    }
    free(s->exchange.weights);
    s->exchange.weights = NULL;
    return PS_OK;
}

static ps_err read_feedback(const char *folder, const json_t *manifest,
                            const ps_snapshot_shape *shape, ps_snapshot *s, float *one)
{
    char name[48];
    for (int r = 0; feedback_name(r, name), checkpoint_has(manifest, name); r++) {
        float *mine = s->feedback[r % s->n_ranks];
        PS_TRY(read_array(folder, name, "feedback", shape->table, one));
        for (uint64_t i = 0; i < shape->table->arena_count; i++)
            mine[i] = r < s->n_ranks ? one[i] : mine[i] + one[i];
    }
    return PS_OK;
}

/* None, or an empty one: the rule begins anew. */
static ps_err read_rule(const json_t *rule, uint8_t out[PS_STEP_RULE_STATE_BYTES],
                        size_t *bytes)
{
    const char *hex = json_string_value(rule);
    const size_t n = hex ? strlen(hex) / 2 : 0;
    *bytes = 0;
    if (!rule) return PS_OK;
    for (size_t i = 0; i < n && n <= PS_STEP_RULE_STATE_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) break;
        out[i] = (uint8_t)byte;
        *bytes = i + 1;
    }
    if (hex && *bytes == n) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "manifest.json: step_rule is not a step rule's state");
}

static ps_err read_awaited(const json_t *list, ps_local_end *end)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        const json_int_t f = json_integer_value(one);
        if (!json_is_integer(one) || f < 0 || (uint64_t)f >= end->n_parts)
            return ps_err_set(PS_ERR_FORMAT,
                              "manifest.json: awaited is not a list of fragments");
        end->parts[f].awaited = 1;
    }
    return PS_OK;
}

/* Of older checkpoints: a number, where there is one fragment. */
static uint64_t checkpoint_read_samples(const json_t *list, size_t i)
{
    return (uint64_t)json_integer_value(json_is_array(list) ? json_array_get(list, i)
                                                            : list);
}

static ps_err read_parts(const json_t *own, const ps_snapshot_shape *shape,
                         ps_local_end *end)
{
    const json_t *samples = json_object_get(own, "samples");
    const size_t n = json_is_array(samples) ? json_array_size(samples) : 1;
    if (n != shape->fragments)
        return ps_err_set(PS_ERR_FORMAT,
                          "manifest.json: %zu samples for %" PRIu32 " fragments", n,
                          shape->fragments);
    end->n_parts = n;
    for (size_t i = 0; i < n; i++) {
        end->parts[i].samples = checkpoint_read_samples(samples, i);
        end->parts[i].all_samples =
            checkpoint_read_samples(json_object_get(own, "all_samples"), i);
    }
    return read_awaited(json_object_get(own, "awaited"), end);
}

static ps_err read_local(const char *folder, const json_t *own, const char *name,
                         const ps_snapshot_shape *shape, void *local)
{
    ps_local_end end = {0};
    size_t bytes;
    PS_TRY(read_parts(own, shape, &end));
    for (int i = 0; i <= shape->inner.n_states; i++)
        PS_TRY(read_array(folder, name, local_word(shape, i), shape->table,
                          ps_local_memory_arena(shape->table, local, i)));
    PS_TRY(read_rule(json_object_get(own, "step_rule"), end.rule, &bytes));
    end.rule_bytes = bytes;
    memcpy(ps_local_memory_end(shape->table, &shape->inner, local), &end, sizeof end);
    return PS_OK;
}

/* Each rank's own; with another number of ranks, those of its number modulo theirs. */
static ps_err read_locals(const char *folder, const json_t *manifest,
                          const ps_snapshot_shape *shape, ps_snapshot *s)
{
    const json_t *all = json_object_get(manifest, "local");
    const size_t n = json_array_size(all);
    for (int r = 0; r < s->n_ranks; r++) {
        const int from = r % (int)n;
        char name[48];
        local_name(from, name);
        PS_TRY(read_local(folder, json_array_get(all, (size_t)from), name, shape,
                          s->local[r]));
    }
    // Where workers make as many steps as they are fast, all_samples differ.
    if ((int)n != s->n_ranks || !json_object_get(json_array_get(all, 0), "all_samples"))
        ps_snapshot_even_shares(s, shape);
    return PS_OK;
}

/* The optimizers' states are other ones, with the same names. */
static ps_err check_policy(const json_t *manifest, const ps_snapshot_shape *shape)
{
    const bool local = json_array_size(json_object_get(manifest, "local")) > 0;
    if (local == shape->local) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "sync.policy: the checkpoint is of a job with %s; go on with that, "
                      "or begin a new job from its weights (train.init)",
                      local ? "local" : "bsp");
}

/* Servers read the rows themselves. */
static ps_err checkpoint_name_rows(const char *folder, const json_t *rows, ps_snapshot *s)
{
    if (!rows) return PS_OK;
    s->rows = json_dumps(rows, JSON_COMPACT);
    if (!s->rows) return ps_err_set(PS_ERR_NOMEM, "no memory for a manifest");
    s->rows_folder = realpath(folder, NULL);
    return s->rows_folder ? PS_OK : ps_err_errno(PS_ERR_IO, "%s", folder);
}

ps_err ps_checkpoint_read(const char *folder, const json_t *manifest,
                          const ps_snapshot_shape *shape, ps_snapshot *s)
{
    PS_TRY(
        ps_trainer_snapshot_from_json(json_object_get(manifest, "state"), &s->trainer));
    PS_TRY(check_policy(manifest, shape));
    PS_TRY(read_rule(json_object_get(manifest, "step_rule"), s->exchange.rule,
                     &s->exchange.rule_bytes));
    PS_TRY(checkpoint_read_weights(folder, manifest, shape, s));
    PS_TRY(read_optimizer(folder, shape, &s->exchange));
    PS_TRY(checkpoint_name_rows(folder, json_object_get(manifest, "rows"), s));
    if (shape->local) PS_TRY(read_locals(folder, manifest, shape, s));
    if (!shape->feedback) return PS_OK;
    float *one;
    PS_TRY(PS_NEW(&one, shape->table->arena_count, "feedback"));
    ps_err err = read_feedback(folder, manifest, shape, s, one);
    free(one);
    return err;
}

ps_err ps_checkpoint_compare(const json_t *manifest, const ps_config *cfg, char *changed,
                             size_t bytes)
{
    return ps_config_compare_kept(cfg, json_object_get(manifest, "config"), changed,
                                  bytes);
}
