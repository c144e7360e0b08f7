/* A YAML document as a tree that remembers line numbers. Over libyaml. */
#ifndef PS_YAML_TREE_H
#define PS_YAML_TREE_H

#include <stddef.h>

#include "err.h"

typedef enum ps_yaml_kind { PS_YAML_SCALAR, PS_YAML_LIST, PS_YAML_MAP } ps_yaml_kind;

typedef struct ps_yaml ps_yaml;
struct ps_yaml {
    ps_yaml_kind kind;
    int line;         // 1-based; 0: not from a file (an override)
    const char *file; // borrowed from the root; "--set" for overrides
    char *key;        // of a map's member, else NULL
    char *text;       // of a scalar, else NULL
    ps_yaml **items;  // of a list or map
    int n_items;
};

/* Parses a file of at most 1 MiB, 64 levels, 65,536 nodes and 4,096 keys per map. Nodes
 * are counted after aliases, so that an alias bomb is an error. Duplicate keys are
 * errors, and so are merge keys (<<). *out is owned by the caller. */
ps_err ps_yaml_load(const char *file, ps_yaml **out);
/* The same from memory; name stands for the file in messages. For tests and fuzzing. */
ps_err ps_yaml_parse(const char *name, const char *text, size_t bytes, ps_yaml **out);
void ps_yaml_destroy(ps_yaml **tree);

/* The node at a dotted path ("optimizer.lr"), or NULL. */
const ps_yaml *ps_yaml_path(const ps_yaml *root, const char *path);
/* Sets the node at a dotted path to the YAML flow value ("[0.9, 0.99]"), and makes the
 * maps on the way. */
ps_err ps_yaml_set(ps_yaml **root, const char *path, const char *value);
/* Of a file: a member "optimizer.lr" of the root becomes what ps_yaml_set makes of that
 * path. CONFIG, with both lines, where the node is there already. */
ps_err ps_yaml_split_keys(ps_yaml *root);

/* "file:line: " + message, as a CONFIG error. */
ps_err ps_yaml_error(const ps_yaml *at, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Scalars, with a CONFIG error that names place and key. */
ps_err ps_yaml_int(const ps_yaml *at, long long min, long long max, long long *out);
ps_err ps_yaml_double(const ps_yaml *at, double *out);
ps_err ps_yaml_bool(const ps_yaml *at, int *out);

#endif
