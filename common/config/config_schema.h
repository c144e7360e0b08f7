/* Every configuration key, in one table. The reader, --help, the configuration's hash and
 * the table in docs/configuration.md are made from it. */
#ifndef PS_CONFIG_SCHEMA_H
#define PS_CONFIG_SCHEMA_H

#include "config.h"

typedef enum ps_key_type {
    PS_KEY_BOOL,        // bool
    PS_KEY_INT,         // int64_t
    PS_KEY_RANGE,       // ps_int_range
    PS_KEY_UINT64,      // uint64_t
    PS_KEY_DOUBLE,      // double
    PS_KEY_BYTES,       // int64_t; K, MiB, ...; "auto" is 0 where min is 0
    PS_KEY_STRING,      // char *
    PS_KEY_WORD,        // an enum of config_words.h
    PS_KEY_DEVICE,      // ps_device_choice
    PS_KEY_INT_LIST,    // ps_int_list
    PS_KEY_DOUBLE_LIST, // ps_float_list
    PS_KEY_NAMES,       // ps_names
    PS_KEY_PATTERNS,    // ps_patterns
    PS_KEY_GROUPS       // ps_group_list
} ps_key_type;

/* PS_SCOPE_JOB: the value is the same on every member, and part of the hash.
 * PS_SCOPE_LOCAL: it may differ. */
typedef enum ps_key_scope { PS_SCOPE_JOB, PS_SCOPE_LOCAL } ps_key_scope;

/* What happens when a job goes on from a checkpoint (--resume) with another value.
 * PS_RESUME_FREE: nothing. PS_RESUME_WARNED: the job goes on, but its result is not that
 * of an unbroken run. PS_RESUME_REFUSED: the checkpoint's state would mean something
 * else. */
typedef enum ps_key_resume {
    PS_RESUME_FREE,
    PS_RESUME_WARNED,
    PS_RESUME_REFUSED
} ps_key_resume;

typedef struct ps_config_key {
    const char *path;
    ps_key_type type;
    ps_key_scope scope;
    ps_key_resume resume;
    size_t offset;        // of the field in ps_config
    double min, max;      // of a number, or of each of a list; both 0: no bounds
    const ps_word *words; // PS_KEY_WORD
    const char *text;     // the default, as it could stand in the file
    const char *help;
} ps_config_key;

extern const ps_config_key ps_config_keys[];
extern const int ps_config_n_keys;

/* The list of layers, which is no value of one key. */
#define PS_CONFIG_LAYERS "model.layers"

/* The field that the key sets. */
static inline void *ps_config_field(const ps_config *cfg, const ps_config_key *key)
{
    return (char *)cfg + key->offset;
}

/* The key with the path, or NULL. */
const ps_config_key *ps_config_key_find(const char *path);
/* What a value of the type looks like, for messages: "true or false", "a whole number".
 */
const char *ps_key_type_text(ps_key_type type);
/* "free", "warned" or "refused". */
const char *ps_key_resume_text(ps_key_resume resume);
/* Writes the values that the key allows, for messages: "0 .. 1", "sgd | adam | adamw",
 * "at least 1" or "". */
void ps_config_key_range(const ps_config_key *key, char *out, size_t bytes);

#endif
