#include "same_data.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "file_wait.h"
#include "hash.h"
#include "job_keys.h"
#include "readable.h"

static const char *const same_data_parts[] = {"data.train", "data.test"};

static json_t *same_data_json(const ps_dataset *set)
{
    return json_pack("{s:I, s:I}", "samples", (json_int_t)set->n, "mark",
                     (json_int_t)ps_dataset_mark(set));
}

/* What is compared; owned by the caller. NULL: no memory. */
static json_t *same_data_own(const ps_data_sets *data, const char *preprocessing)
{
    ps_hash h;
    ps_hash_init(&h);
    ps_hash_string(&h, preprocessing ? preprocessing : "");
    return json_pack("{s:o, s:o, s:I}", "data.train", same_data_json(&data->train),
                     "data.test", same_data_json(&data->test), "preprocessing",
                     (json_int_t)(ps_hash_value(&h) >> 1));
}

static json_int_t same_data_samples(const json_t *all, const char *part)
{
    return json_integer_value(json_object_get(json_object_get(all, part), "samples"));
}

static bool same_data_is(const json_t *own, const json_t *first, const char *key)
{
    return json_equal(json_object_get(own, key), json_object_get(first, key));
}

static ps_err same_data_put(ps_member *m, const json_t *own, ps_deadline deadline)
{
    char *text = json_dumps(own, JSON_COMPACT);
    if (!text) return ps_err_set(PS_ERR_NOMEM, "no memory to compare the data");
    const ps_err err = ps_member_put(m, PS_JOB_KEY_DATA, text, strlen(text), deadline);
    free(text);
    return err;
}

static ps_err same_data_check_counts(const json_t *own, const json_t *first)
{
    for (int i = 0; i < 2; i++) {
        const char *part = same_data_parts[i];
        const json_int_t n = same_data_samples(own, part);
        if (n == same_data_samples(first, part)) continue;
        return ps_err_set(PS_ERR_CONFIG,
                          "%s: this worker has %s samples, and worker 0 has %s: give all "
                          "workers the same files",
                          part, PS_COUNTED(n),
                          PS_COUNTED(same_data_samples(first, part)));
    }
    return PS_OK;
}

static ps_err same_data_check_answers(const json_t *own, const json_t *first)
{
    for (int i = 0; i < 2; i++)
        if (!same_data_is(own, first, same_data_parts[i]))
            return ps_err_set(PS_ERR_CONFIG,
                              "%s: this worker's samples have other answers than worker "
                              "0's, or another order: give all workers the same files",
                              same_data_parts[i]);
    return PS_OK;
}

static ps_err same_data_compare(const json_t *own, const json_t *first,
                                const ps_config *config)
{
    PS_TRY(same_data_check_counts(own, first));
    if (same_data_is(own, first, "preprocessing"))
        return same_data_check_answers(own, first);
    return ps_err_set(
        PS_ERR_CONFIG,
        "data.train: this worker's training samples have other columns, means "
        "or categories than worker 0's: give all workers the same files%s",
        config->train.init[0] ? ", and the same train.init" : "");
}

static ps_err same_data_get(ps_member *m, const json_t *own, const ps_config *config,
                            ps_deadline deadline)
{
    void *value = NULL;
    size_t bytes = 0;
    PS_TRY(ps_member_get(m, PS_JOB_KEY_DATA, &value, &bytes, deadline));
    json_t *first = json_loadb(value, bytes, 0, NULL);
    free(value);
    const ps_err err =
        first ? same_data_compare(own, first, config)
              : ps_err_set(PS_ERR_PROTOCOL, "worker 0 did not say what its data are");
    json_decref(first);
    return err;
}

ps_err ps_same_data(ps_member *member, int rank, const ps_config *config,
                    const ps_data_sets *data, const char *preprocessing)
{
    const ps_deadline deadline = ps_file_meeting_deadline(config, rank);
    json_t *own = same_data_own(data, preprocessing);
    if (!own) return ps_err_set(PS_ERR_NOMEM, "no memory to compare the data");
    const ps_err err = rank == 0 ? same_data_put(member, own, deadline)
                                 : same_data_get(member, own, config, deadline);
    json_decref(own);
    return err;
}
