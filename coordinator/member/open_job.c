#include "open_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "mem.h"

enum {
    VERSION = 5,
    N_ITEMS = 9,
    TENSOR_ITEMS = 3,  // before the dimensions
    ROWS_BYTES = 4096, // of a table's settings
    MAX_SETTINGS = 1024,
    SETTING_BYTES = 4096,
    MAX_TENSORS = 1 << 20,
    NAME_BYTES = 1024
};

void ps_open_job_fini(ps_open_job *job)
{
    for (int i = 0; job->settings && i < job->n_settings; i++)
        free(job->settings[i]);
    free(job->settings);
    free(job->numbers);
    free(job->rows);
    ps_tensor_table_fini(&job->table);
    *job = (ps_open_job){0};
}

void ps_open_job_set_owners(ps_open_job *job)
{
    for (int i = 0; i < job->table.n_tensors && job->numbers; i++) {
        ps_tensor *t = &job->table.tensors[i];
        const double owner = job->numbers[t->group].owner;
        // Others are refused later (ps_param_groups_open).
        t->owner = owner >= 0 && owner < PS_MAX_GROUPS ? (int)owner : 0;
    }
}

ps_err ps_open_job_config(const ps_config *local, ps_config *defaults, ps_config *view)
{
    char workers[40], servers[40];
    snprintf(workers, sizeof workers, "job.workers=%" PRId64, local->job.workers);
    snprintf(servers, sizeof servers, "job.servers=%" PRId64, local->job.servers);
    const char *const sets[] = {workers, servers, "exchange.name=none"};
    PS_TRY(ps_config_load(defaults, NULL, sets, 3));
    ps_config_view(view, local, defaults);
    return PS_OK;
}

/* --- the message ------------------------------------------------------------------- */

static void open_job_write_tensors(ps_mp_writer *w, const ps_tensor *tensors, int n)
{
    ps_mp_write_array(w, (size_t)n);
    for (int i = 0; i < n; i++) {
        const ps_tensor *t = &tensors[i];
        ps_mp_write_array(w, TENSOR_ITEMS + (size_t)t->dims.n);
        ps_mp_write_str(w, t->name);
        ps_mp_write_uint(w, (uint64_t)t->role);
        ps_mp_write_uint(w, (uint64_t)t->group);
        for (int k = 0; k < t->dims.n; k++)
            ps_mp_write_int(w, t->dims.d[k]);
    }
}

static ps_err open_job_write_rows(ps_mp_writer *w, const ps_row_spec *rows, int n)
{
    ps_err err = PS_OK;
    ps_mp_write_array(w, (size_t)n);
    for (int i = 0; i < n && err == PS_OK; i++) {
        ps_mp_writer table;
        ps_mp_writer_init(&table);
        ps_row_spec_write(&table, &rows[i]);
        err = ps_mp_writer_end(&table);
        ps_mp_write_bin(w, table.base, table.used);
        ps_mp_writer_fini(&table);
    }
    return err;
}

ps_err ps_open_job_write(const ps_open_job *job, ps_mp_writer *w)
{
    ps_mp_write_array(w, N_ITEMS);
    ps_mp_write_uint(w, VERSION);
    ps_mp_write_uint(w, job->plan_hash);
    ps_mp_write_array(w, (size_t)job->n_settings);
    for (int i = 0; i < job->n_settings; i++)
        ps_mp_write_str(w, job->settings[i]);
    ps_mp_write_uint(w, job->mean);
    ps_mp_write_uint(w, (uint64_t)job->n_groups);
    ps_mp_write_bin(w, job->numbers,
                    job->numbers ? (size_t)job->n_groups * sizeof *job->numbers : 0);
    open_job_write_tensors(w, job->table.tensors, job->table.n_tensors);
    open_job_write_tensors(w, job->table.buffers, job->table.n_buffers);
    PS_TRY(open_job_write_rows(w, job->rows, job->n_rows));
    return ps_mp_writer_end(w);
}

static ps_err open_job_malformed(void)
{
    return ps_err_set(PS_ERR_PROTOCOL, "%s is malformed", PS_JOB_KEY_TENSORS);
}

static ps_err read_settings(ps_mp_reader *r, ps_open_job *job)
{
    char text[SETTING_BYTES];
    const size_t n = ps_mp_read_array(r, MAX_SETTINGS);
    PS_TRY(PS_NEW(&job->settings, n, "settings"));
    for (size_t i = 0; i < n && !r->failed; i++) {
        ps_mp_read_str(r, text, sizeof text);
        PS_TRY(ps_mem_strdup(&job->settings[i], text));
        job->n_settings++;
    }
    return PS_OK;
}

static ps_err open_job_read_groups(ps_mp_reader *r, ps_open_job *job)
{
    size_t bytes;
    job->n_groups = (int)ps_mp_read_uint(r, PS_MAX_GROUPS);
    const void *numbers = ps_mp_read_bin(r, &bytes, PS_MAX_GROUPS * sizeof *job->numbers);
    if (r->failed || job->n_groups < 1) return open_job_malformed();
    if (bytes == 0) return PS_OK;
    if (bytes != (size_t)job->n_groups * sizeof *job->numbers)
        return open_job_malformed();
    PS_TRY(ps_mem_zalloc(&job->numbers, bytes, 1, "parameter groups"));
    memcpy(job->numbers, numbers, bytes);
    return PS_OK;
}

static ps_err open_job_read_tensor(ps_mp_reader *r, ps_open_job *job, bool buffer)
{
    char name[NAME_BYTES];
    ps_dims dims = {0};
    const size_t items = ps_mp_read_array(r, TENSOR_ITEMS + PS_MAX_DIMS);
    ps_mp_read_str(r, name, sizeof name);
    const ps_tensor_role role = (ps_tensor_role)ps_mp_read_uint(r, PS_TENSOR_COUNTER);
    const int group = (int)ps_mp_read_uint(r, PS_MAX_GROUPS);
    if (r->failed || items < TENSOR_ITEMS) return open_job_malformed();
    dims.n = (int)items - TENSOR_ITEMS;
    for (int i = 0; i < dims.n; i++)
        dims.d[i] = ps_mp_read_int(r, 1, PS_ARENA_COUNT_MAX);
    const bool is_buffer = role == PS_TENSOR_BUFFER || role == PS_TENSOR_COUNTER;
    if (r->failed || ps_dims_count_max(&dims, PS_ARENA_COUNT_MAX) < 0 ||
        buffer != is_buffer || group >= job->n_groups)
        return open_job_malformed();
    int index;
    if (buffer) return ps_tensor_table_add_buffer(&job->table, name, dims, role, &index);
    PS_TRY(ps_tensor_table_add(&job->table, name, dims, role, 1, &index));
    job->table.tensors[index].group = group;
    return PS_OK;
}

static ps_err open_job_read_rows(ps_mp_reader *r, ps_open_job *job)
{
    const size_t n = ps_mp_read_array(r, PS_ROW_TABLES_MAX);
    PS_TRY(PS_NEW(&job->rows, n, "embedding tables"));
    for (size_t i = 0; i < n && !r->failed; i++) {
        size_t bytes;
        const void *table = ps_mp_read_bin(r, &bytes, ROWS_BYTES);
        if (r->failed ||
            ps_row_spec_read(table, bytes, "a table", &job->rows[i]) != PS_OK ||
            job->rows[i].number != i)
            return open_job_malformed();
        job->n_rows++;
    }
    return PS_OK;
}

static ps_err open_job_read_all(ps_mp_reader *r, ps_open_job *job)
{
    if (ps_mp_read_array(r, N_ITEMS) != N_ITEMS || ps_mp_read_uint(r, 255) != VERSION)
        return open_job_malformed();
    job->plan_hash = ps_mp_read_uint(r, UINT64_MAX);
    PS_TRY(read_settings(r, job));
    job->mean = ps_mp_read_uint(r, 1) == 1;
    PS_TRY(open_job_read_groups(r, job));
    for (int buffer = 0; buffer < 2; buffer++) {
        const size_t n = ps_mp_read_array(r, MAX_TENSORS);
        for (size_t i = 0; i < n; i++)
            PS_TRY(open_job_read_tensor(r, job, buffer));
    }
    PS_TRY(open_job_read_rows(r, job));
    return ps_mp_reader_end(r) && job->table.n_tensors > 0 ? PS_OK : open_job_malformed();
}

ps_err ps_open_job_read(const void *bytes, size_t n, ps_open_job *out)
{
    ps_mp_reader r;
    *out = (ps_open_job){0};
    ps_mp_reader_init(&r, bytes, n);
    ps_err err = open_job_read_all(&r, out);
    if (err != PS_OK) ps_open_job_fini(out);
    return err;
}

ps_err ps_open_job_put(ps_member *member, const ps_open_job *job, ps_deadline deadline)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    (void)ps_open_job_write(job, &w); // fails only as w does
    return ps_member_put_written(member, PS_JOB_KEY_TENSORS, &w, deadline);
}

ps_err ps_open_job_get(ps_member *member, ps_deadline deadline, ps_open_job *out,
                       bool *found)
{
    void *value;
    size_t bytes;
    *out = (ps_open_job){0};
    *found = false;
    ps_err err = ps_member_get(member, PS_JOB_KEY_TENSORS, &value, &bytes, deadline);
    if (err == PS_ERR_TIMEOUT) return PS_OK;
    if (err != PS_OK) return err;
    err = ps_open_job_read(value, bytes, out);
    free(value);
    *found = err == PS_OK;
    return err;
}

/* --- comparing --------------------------------------------------------------------- */

static void tensor_text(const ps_tensor *t, char *out, size_t cap)
{
    char dims[PS_DIMS_TEXT];
    snprintf(out, cap, "%.200s %s", t->name, ps_dims_text(&t->dims, dims));
}

static ps_err compare_tensors(const ps_tensor *of_0, int n_0, const ps_tensor *own, int n,
                              int rank, const char *word)
{
    for (int i = 0; i < n && i < n_0; i++) {
        char mine[320], other[320];
        tensor_text(&own[i], mine, sizeof mine);
        tensor_text(&of_0[i], other, sizeof other);
        if (strcmp(mine, other) != 0)
            return ps_err_set(PS_ERR_PEER,
                              "worker %d has other %ss than worker 0: %s %d is %s, "
                              "not %s",
                              rank, word, word, i, mine, other);
        if (own[i].role != of_0[i].role || own[i].group != of_0[i].group)
            return ps_err_set(PS_ERR_PEER,
                              "worker %d has another kind or group of %s than worker 0",
                              rank, mine);
    }
    if (n == n_0) return PS_OK;
    char first[320];
    tensor_text(n > n_0 ? &own[n_0] : &of_0[n], first, sizeof first);
    return ps_err_set(PS_ERR_PEER,
                      "worker %d has %d %ss, worker 0 has %d: worker %d alone has %s",
                      rank, n, word, n_0, n > n_0 ? rank : 0, first);
}

static ps_err open_job_load(const ps_open_job *job, ps_config *cfg)
{
    return ps_config_load(cfg, NULL, (const char *const *)job->settings, job->n_settings);
}

static ps_err compare_settings(const ps_open_job *of_0, const ps_open_job *own, int rank)
{
    ps_config a, b;
    const char *key = NULL;
    PS_TRY(open_job_load(of_0, &a));
    ps_err err = open_job_load(own, &b);
    if (err == PS_OK) key = ps_config_difference(&a, &b);
    if (key)
        err =
            ps_err_set(PS_ERR_PEER, "worker %d has another %s than worker 0", rank, key);
    if (err == PS_OK || key) ps_config_fini(&b);
    ps_config_fini(&a);
    return err;
}

static ps_err compare_numbers(const ps_open_job *of_0, const ps_open_job *own, int rank)
{
    for (int i = 0; i < own->n_groups && own->numbers && of_0->numbers; i++)
        if (memcmp(&own->numbers[i], &of_0->numbers[i], sizeof *own->numbers) != 0)
            return ps_err_set(PS_ERR_PEER,
                              "worker %d has other numbers than worker 0 for parameter "
                              "group %d (lr %g there, %g here)",
                              rank, i, of_0->numbers[i].lr, own->numbers[i].lr);
    if (!own->numbers == !of_0->numbers) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "worker %d or worker 0 has no parameter groups", rank);
}

static ps_err compare_rows(const ps_open_job *of_0, const ps_open_job *own, int rank)
{
    char difference[200];
    for (int i = 0; i < own->n_rows && i < of_0->n_rows; i++) {
        const ps_row_spec *a = &of_0->rows[i], *b = &own->rows[i];
        if (ps_row_spec_difference(a, b, difference, sizeof difference)[0] != '\0')
            return ps_err_set(PS_ERR_PEER,
                              "worker 0 and worker %d differ in embedding table %d, %s: "
                              "%s",
                              rank, i, a->name, difference);
    }
    if (own->n_rows == of_0->n_rows) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "worker %d has %d embedding tables, worker 0 has %d",
                      rank, own->n_rows, of_0->n_rows);
}

ps_err ps_open_job_compare(const ps_open_job *of_0, const ps_open_job *own, int rank)
{
    const ps_tensor_table *a = &of_0->table, *b = &own->table;
    PS_TRY(compare_tensors(a->tensors, a->n_tensors, b->tensors, b->n_tensors, rank,
                           "tensor"));
    PS_TRY(compare_tensors(a->buffers, a->n_buffers, b->buffers, b->n_buffers, rank,
                           "buffer"));
    if (own->n_groups != of_0->n_groups)
        return ps_err_set(PS_ERR_PEER,
                          "worker %d has %d parameter groups, worker 0 has %d", rank,
                          own->n_groups, of_0->n_groups);
    PS_TRY(compare_settings(of_0, own, rank));
    PS_TRY(compare_rows(of_0, own, rank));
    if (own->mean != of_0->mean)
        return ps_err_set(PS_ERR_PEER,
                          "worker %d wants the %s of the gradients, worker 0 the %s",
                          rank, own->mean ? "mean" : "sum", of_0->mean ? "mean" : "sum");
    PS_TRY(compare_numbers(of_0, own, rank));
    if (own->plan_hash == of_0->plan_hash) return PS_OK;
    return ps_err_set(PS_ERR_PEER,
                      "worker %d cuts the tensors into other chunks than worker 0: give "
                      "all processes the same address of the coordinator",
                      rank);
}
