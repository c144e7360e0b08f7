#include "trainer_reentry.h"

#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "mem.h"
#include "mp_map.h"

enum { MOST_BUFFER_BYTES = 16 << 20 };

bool ps_trainer_reentry_on(const ps_config *config, const ps_tensor_table *table)
{
    return ps_config_quorum(config) && config->recovery.rejoins > 0 &&
           table->frozen_bytes == 0 && table->buffer_bytes <= MOST_BUFFER_BYTES;
}

typedef struct reentry_message {
    ps_trainer_reentry reentry; // first: the table's offsets are its own
    ps_map_bytes trainer;       // JSON: the state of training
    ps_map_list round_steps;    // none: all have the same
    ps_map_bytes buffers;
} reentry_message;

static const ps_map_field reentry_fields[] = {
    PS_MAP_FIELD(ps_trainer_reentry, generation, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_trainer_reentry, first, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_trainer_reentry, kept, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_trainer_reentry, buffer_pieces, U64, UINT64_MAX),
    PS_MAP_FIELD(reentry_message, trainer, BYTES, SIZE_MAX),
    PS_MAP_FIELD(reentry_message, round_steps, NUMBERS, 0),
    PS_MAP_FIELD(reentry_message, buffers, BYTES, MOST_BUFFER_BYTES),
};
static const ps_map reentry_map = PS_MAP_OF(reentry_fields, reentry_message);

static ps_err trainer_reentry_write(ps_mp_writer *w, const ps_tensor_table *table,
                                    const ps_trainer_snapshot *now,
                                    const ps_trainer_reentry *reentry)
{
    json_t *state;
    PS_TRY(ps_trainer_snapshot_to_json(now, &state));
    char *text = json_dumps(state, JSON_COMPACT);
    json_decref(state);
    if (!text) return ps_err_set(PS_ERR_NOMEM, "no memory for the state of training");
    const reentry_message m = {
        .reentry = *reentry,
        .trainer = {text, strlen(text)},
        .round_steps = {reentry->round_steps,
                        reentry->round_steps ? (size_t)now->n_ranks : 0},
        .buffers = {reentry->buffers, table->buffer_bytes}};
    ps_map_write(w, &reentry_map, &m);
    free(text);
    return PS_OK;
}

ps_err ps_trainer_reentry_tell(ps_member *member, const ps_tensor_table *table,
                               const ps_trainer_snapshot *now,
                               const ps_trainer_reentry *reentry, ps_deadline deadline)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    const ps_job_key key = ps_job_key_reentry(reentry->stretch);
    ps_err err = trainer_reentry_write(&w, table, now, reentry);
    if (err == PS_OK) err = ps_member_put_written(member, key.text, &w, deadline);
    if (err != PS_OK || reentry->stretch == 0) return err;
    const ps_job_key before = ps_job_key_reentry(reentry->stretch - 1);
    return ps_member_drop(member, before.text, deadline);
}

static ps_err read_steps(const ps_map_list *steps, int n, ps_trainer_reentry *out)
{
    const size_t bytes = steps->n * sizeof *out->round_steps;
    if (steps->n == 0) return PS_OK;
    for (size_t r = 0; r < steps->n; r++)
        if (((const int64_t *)steps->items)[r] < 1 || steps->n != (size_t)n)
            return ps_err_set(PS_ERR_PROTOCOL, "rounds without steps");
    PS_TRY(ps_mem_zalloc(&out->round_steps, bytes, 1, "the rounds' steps"));
    memcpy(out->round_steps, steps->items, bytes);
    return PS_OK;
}

static ps_err trainer_reentry_read(const void *value, size_t bytes,
                                   const ps_tensor_table *table, ps_trainer_snapshot *now,
                                   ps_trainer_reentry *out)
{
    int64_t steps[PS_MAX_RANKS];
    reentry_message m = {.reentry = *out, .round_steps = {steps, PS_MAX_RANKS}};
    PS_TRY(ps_map_read(value, bytes, &reentry_map, "the place of a dead worker", &m));
    if (m.buffers.n != table->buffer_bytes)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "the place of a dead worker: buffers has %zu bytes",
                          m.buffers.n);
    *out = m.reentry;
    json_t *json = json_loadb(m.trainer.at, m.trainer.n, 0, NULL);
    const ps_err err = ps_trainer_snapshot_from_json(json, now);
    json_decref(json);
    if (err != PS_OK) return ps_err_prefix(err, "the place of a dead worker");
    PS_TRY(read_steps(&m.round_steps, now->n_ranks, out));
    if (m.buffers.n == 0) return PS_OK;
    PS_TRY(ps_mem_zalloc(&out->buffers, m.buffers.n, 1, "the buffers"));
    memcpy(out->buffers, m.buffers.at, m.buffers.n);
    return PS_OK;
}

ps_err ps_trainer_reentry_hear(ps_member *member, const ps_coord_orders_reentry *from,
                               const ps_tensor_table *table, ps_trainer_snapshot *now,
                               ps_trainer_reentry *out, ps_deadline deadline)
{
    void *value = NULL;
    size_t bytes;
    *out = (ps_trainer_reentry){.stretch = from->stretch, .made = from->made};
    const ps_job_key key = ps_job_key_reentry(from->stretch);
    PS_TRY(ps_member_get(member, key.text, &value, &bytes, deadline));
    const ps_err err = trainer_reentry_read(value, bytes, table, now, out);
    free(value);
    return err;
}

void ps_trainer_reentry_fini(ps_trainer_reentry *reentry)
{
    free(reentry->round_steps);
    free(reentry->buffers);
    *reentry = (ps_trainer_reentry){0};
}
