#include "trainer_place.h"

#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "mem.h"

enum { MOST_BUFFER_BYTES = 16 << 20 };

bool ps_trainer_place_on(const ps_config *config, const ps_tensor_table *table)
{
    return ps_config_quorum(config) && config->recovery.rejoins > 0 &&
           table->frozen_bytes == 0 && table->buffer_bytes <= MOST_BUFFER_BYTES;
}

static int set_number(json_t *json, const char *key, uint64_t value)
{
    return json_object_set_new(json, key, json_integer((int64_t)value));
}

static uint64_t trainer_place_number_of(const json_t *json, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(json, key));
}

static json_t *steps_json(const int64_t *steps, int n)
{
    json_t *list = json_array();
    for (int r = 0; r < n && steps; r++)
        json_array_append_new(list, json_integer(steps[r]));
    return list;
}

static ps_err trainer_place_write_text(const ps_trainer_snapshot *now,
                                       const ps_trainer_place *place, char **out)
{
    json_t *state;
    PS_TRY(ps_trainer_snapshot_to_json(now, &state));
    json_t *json = json_object();
    const int bad = json_object_set_new(json, "trainer", state) |
                    set_number(json, "generation", place->generation) |
                    set_number(json, "first", place->first) |
                    set_number(json, "kept", place->kept) |
                    set_number(json, "buffer_pieces", place->buffer_pieces) |
                    json_object_set_new(json, "round_steps",
                                        steps_json(place->round_steps, now->n_ranks));
    *out = bad ? NULL : json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for the state of training");
}

/* The text with its end, and the buffers. */
static ps_err put_value(ps_member *member, const char *key, const char *text,
                        const void *buffers, size_t buffer_bytes, ps_deadline deadline)
{
    const size_t n = strlen(text) + 1;
    char *value;
    PS_TRY(ps_mem_zalloc(&value, n + buffer_bytes, 1, "the state of training"));
    memcpy(value, text, n);
    if (buffer_bytes > 0) memcpy(value + n, buffers, buffer_bytes);
    const ps_err err = ps_member_put(member, key, value, n + buffer_bytes, deadline);
    free(value);
    return err;
}

ps_err ps_trainer_place_tell(ps_member *member, const ps_tensor_table *table,
                             const ps_trainer_snapshot *now,
                             const ps_trainer_place *place, ps_deadline deadline)
{
    char *text;
    PS_TRY(trainer_place_write_text(now, place, &text));
    const ps_job_key key = ps_job_key_place(place->stretch);
    ps_err err =
        put_value(member, key.text, text, place->buffers, table->buffer_bytes, deadline);
    free(text);
    if (err != PS_OK || place->stretch == 0) return err;
    const ps_job_key before = ps_job_key_place(place->stretch - 1);
    return ps_member_put(member, before.text, "", 0, deadline);
}

static ps_err read_steps(const json_t *list, int n, ps_trainer_place *out)
{
    if (json_array_size(list) == 0) return PS_OK;
    PS_TRY(ps_mem_zalloc(&out->round_steps, (size_t)n, sizeof *out->round_steps,
                         "the rounds' steps"));
    for (int r = 0; r < n; r++) {
        out->round_steps[r] = json_integer_value(json_array_get(list, (size_t)r));
        if (out->round_steps[r] < 1)
            return ps_err_set(PS_ERR_PROTOCOL, "rounds without steps");
    }
    return PS_OK;
}

static ps_err trainer_place_read_text(const json_t *json, ps_trainer_snapshot *now,
                                      ps_trainer_place *out)
{
    const ps_err err =
        ps_trainer_snapshot_from_json(json_object_get(json, "trainer"), now);
    if (err != PS_OK) return ps_err_prefix(err, "the place of a dead worker");
    out->generation = trainer_place_number_of(json, "generation");
    out->first = trainer_place_number_of(json, "first");
    out->kept = trainer_place_number_of(json, "kept");
    out->buffer_pieces = trainer_place_number_of(json, "buffer_pieces");
    return read_steps(json_object_get(json, "round_steps"), now->n_ranks, out);
}

static ps_err trainer_place_read_value(const char *value, size_t bytes,
                                       const ps_tensor_table *table,
                                       ps_trainer_snapshot *now, ps_trainer_place *out)
{
    const size_t n = strnlen(value, bytes), wanted = table->buffer_bytes;
    if (n == bytes || bytes - n - 1 != wanted)
        return ps_err_set(PS_ERR_PROTOCOL, "the place of a dead worker has %zu bytes",
                          bytes);
    json_t *json = json_loadb(value, n, 0, NULL);
    const ps_err err = trainer_place_read_text(json, now, out);
    json_decref(json);
    if (err != PS_OK || wanted == 0) return err;
    PS_TRY(ps_mem_zalloc(&out->buffers, wanted, 1, "the buffers"));
    memcpy(out->buffers, value + n + 1, wanted);
    return PS_OK;
}

ps_err ps_trainer_place_hear(ps_member *member, const ps_coord_orders_place *from,
                             const ps_tensor_table *table, ps_trainer_snapshot *now,
                             ps_trainer_place *out, ps_deadline deadline)
{
    void *value = NULL;
    size_t bytes;
    *out = (ps_trainer_place){.stretch = from->stretch, .made = from->made};
    const ps_job_key key = ps_job_key_place(from->stretch);
    PS_TRY(ps_member_get(member, key.text, &value, &bytes, deadline));
    const ps_err err = trainer_place_read_value(value, bytes, table, now, out);
    free(value);
    return err;
}

void ps_trainer_place_fini(ps_trainer_place *place)
{
    free(place->round_steps);
    free(place->buffers);
    *place = (ps_trainer_place){0};
}
